"""Token files, tokenizers and one folder per corpus, each with its prepare.py."""
