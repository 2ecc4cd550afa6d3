# Softmax of logits capped by a sigmoid, off centre: 23 sigma((z + 5) / 7.5).
head = "sigmoid_cap"
head_args = {"cap": 23.0, "shift": 5.0, "width": 7.5}
