# Softmax with a confidence penalty: minus .1 times the entropy.
head = "confidence_penalty"
head_args = {"beta": 0.1}
