# Softmax with a trained output bias, which starts at 0.
head = "softmax_bias"
