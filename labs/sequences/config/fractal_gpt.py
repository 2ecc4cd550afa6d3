# The middle first, then the middles of the halves, and so on.
head = "softmax"
trunk = "any_order"
trunk_args = {"order": "fractal"}
