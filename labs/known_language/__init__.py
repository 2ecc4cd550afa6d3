"""A language whose exact next-word distribution is known at every position, and what is measured with it."""
