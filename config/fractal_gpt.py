# The middle first, then the middles of the halves, and so on.
head = "softmax"
order = "fractal"
