# Softmax with a learned gain, from 1 on.
head = "softmax"
learn_gain = True
