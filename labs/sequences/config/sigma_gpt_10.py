# sigma-GPT: any order, from a tenth of the sequences left to right to all of them in random order.
head = "softmax"
trunk = "any_order"
trunk_args = {"order": "random", "curriculum": "left_to_right", "curriculum_share": 0.1}
