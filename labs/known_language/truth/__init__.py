"""How far runs are from the known language's own distributions."""
