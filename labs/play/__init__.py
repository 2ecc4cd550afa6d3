"""A page to play with: what each run believes comes next."""
