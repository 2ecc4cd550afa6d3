# AM-softmax: cosines over a learned tau, and a margin in training.
head = "am_softmax"
head_args = {"m": 0.03, "tau": 0.05}
