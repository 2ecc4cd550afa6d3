# Softmax whose output embeddings are kept centred: the square of their mean costs.
head = "softmax"
auxiliary = "mu_loss"
auxiliary_args = {"weight": 1e-4}
