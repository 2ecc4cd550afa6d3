"""How well models know the rest of a climb, given parts of it: a measure."""
