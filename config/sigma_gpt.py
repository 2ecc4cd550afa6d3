# sigma-GPT: any order, from half of the sequences left to right to all of them in random order.
head = "softmax"
order = "random"
curriculum = "left_to_right"
curriculum_share = 0.5
