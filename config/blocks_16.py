# Blocks of sixteen tokens from left to right, each in random order.
head = "softmax"
order = "blocks_16"
