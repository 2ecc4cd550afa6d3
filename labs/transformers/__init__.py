"""A run as a folder that transformers loads, and its way to the Hugging Face hub."""
