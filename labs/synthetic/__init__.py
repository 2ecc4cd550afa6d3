"""Four tasks whose exact distributions are known at every position, given any of the other tokens."""
