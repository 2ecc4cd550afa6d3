# GPT-2 124M with softmax: the paper's baseline.
# Every other row changes the output head or the labels, nothing else.
head = "softmax"
