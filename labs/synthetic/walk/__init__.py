"""What stands at every place of a lazy random walk, given its value at one: a measure."""
