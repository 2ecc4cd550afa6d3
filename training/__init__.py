"""What a run is trained on, and what judges it."""
