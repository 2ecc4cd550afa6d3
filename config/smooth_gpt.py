# Smooth-GPT, eps = .05: label smoothing in training, scored without it.
head = "label_smoothing"
head_args = {"eps": 0.05}
