# Sig-GPT with the sum regulariser (eq. 4), on the probabilities: they should sum to one.
head = "sigmoid"
head_args = {"sum_weight": 1.0}
labels = "soft"
candidates = 50
positions = 0.5
