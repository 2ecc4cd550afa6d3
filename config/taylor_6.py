# Taylor softmax of order 6.
head = "taylor"
head_args = {"n": 6}
gain = 3.33
