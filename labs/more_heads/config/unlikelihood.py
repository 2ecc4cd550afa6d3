# Softmax with token-level unlikelihood of the context's tokens.
head = "unlikelihood"
head_args = {"alpha": 1.0}
