# Smooth-GPT, eps = .1.
head = "label_smoothing"
head_args = {"eps": 0.1}
