"""Sequences whose exact distributions are known, given any of their tokens: what several labs are made of."""
