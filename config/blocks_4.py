# Blocks of four tokens from left to right, each in random order: between left to right and a random order.
head = "softmax"
order = "blocks_4"
