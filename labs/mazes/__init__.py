"""Mazes with a shortest path as the answer, and the exact probability of every cell of the answer."""
