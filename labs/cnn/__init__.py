"""A convolutional network as a trunk, made from a line of text."""
