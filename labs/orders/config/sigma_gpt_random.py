# sigma-GPT without a curriculum: each sequence in a random order.
head = "softmax"
trunk = "any_order"
trunk_args = {"order": "random"}
