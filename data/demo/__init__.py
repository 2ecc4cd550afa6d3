"""A small corpus that comes with Python: for trying things without a download."""
