# sigma-GPT: any order, from half of the sequences left to right to all of them in random order.
head = "softmax"
trunk = "any_order"
trunk_args = {"order": "random", "curriculum": "left_to_right"}
