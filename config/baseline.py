# Softmax: the usual head, which all others are compared with. A word's probability is e to its score, over
# the sum of that over all words, and training makes the true next word probable.
#
# GPT-2 124M with it is the paper's baseline; other rows change the output head or the labels, nothing else.
head = "softmax"
