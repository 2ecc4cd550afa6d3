# Bayes Sig-GPT: the positive-weight Sig-GPT over a Bayesian projection.
head = "sigmoid"
head_args = {"pos_weight": 1000.0}
bayesian = True
labels = "soft"
candidates = 50
positions = 0.5
