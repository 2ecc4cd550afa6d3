# Softmax at temperature 2, in training and in scoring: half the gain.
# Source: the GS-Softmax paper, sec. 5.2; Guo et al. 2017, arXiv 1706.04599.
head = "softmax"
gain = 0.5
