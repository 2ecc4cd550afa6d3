"""Images as sequences of a class and codes, and the tokenizers that make them."""
