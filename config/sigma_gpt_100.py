# sigma-GPT: any order, from all sequences left to right to all of them in random order.
head = "softmax"
order = "random"
curriculum = "left_to_right"
curriculum_share = 1.0
