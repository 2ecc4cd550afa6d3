# sigma-GPT without a curriculum: each sequence in a random order.
head = "softmax"
order = "random"
