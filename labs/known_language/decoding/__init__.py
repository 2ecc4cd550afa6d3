"""What a temperature and the cuts of a distribution do to its distance from the truth."""
