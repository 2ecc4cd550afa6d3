# Softmax at temperature 2 in training and in scoring.
head = "temperature"
head_args = {"tau": 2.0}
