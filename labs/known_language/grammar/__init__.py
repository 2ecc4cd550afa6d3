"""A synthetic language whose exact next-token distribution is known at every position."""
