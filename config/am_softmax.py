# AM-softmax: cosines, and a margin in training.
head = "am_softmax"
head_args = {"m": 0.6}
