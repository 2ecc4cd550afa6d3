# Softmax with a trained output bias, which starts at the log frequencies of the train tokens.
head = "softmax_bias"
unigram_bias = True
