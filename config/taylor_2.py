# Taylor softmax of order 2.
head = "taylor"
head_args = {"n": 2}
gain = 10.0
