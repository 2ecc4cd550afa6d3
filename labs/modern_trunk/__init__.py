"""The trunk of today's small models."""
