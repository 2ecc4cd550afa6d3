# Soft-margin softmax, m = .6 in training, scored without it.
head = "sm_softmax"
head_args = {"m": 0.6}
