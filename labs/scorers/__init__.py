"""Texts under a language model that is named: generative perplexity and MAUVE."""
