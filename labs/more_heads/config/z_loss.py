# Softmax, plus 1e-4 times the square of its log normaliser.
head = "z_loss"
head_args = {"alpha": 1e-4}
