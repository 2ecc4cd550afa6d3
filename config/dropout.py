# Softmax with dropout, which keeps a text that is read many times from being learnt by heart.
head = "softmax"
dropout = 0.2
