# Taylor softmax of order 2 with a soft margin of .6 in training.
head = "sm_taylor"
head_args = {"n": 2, "m": 0.6}
gain = 10.0
