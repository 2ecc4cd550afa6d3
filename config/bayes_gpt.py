# Bayes-GPT: softmax over a Bayesian projection.
head = "softmax"
bayesian = True
