"""Your own text: a folder of text files."""
