# Softmax of logits capped at 30 by a tanh.
head = "softcap"
head_args = {"cap": 30.0}
