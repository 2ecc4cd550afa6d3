# Taylor-inf: order 2 forward, p - onehot backward.
head = "taylor_inf"
head_args = {"n": 2}
gain = 10.0
