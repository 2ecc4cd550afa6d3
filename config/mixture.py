# A mixture of four softmaxes, each of a context of its own.
head = "softmax"
mixture = 4
