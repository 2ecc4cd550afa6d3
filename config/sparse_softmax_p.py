# Sparse softmax by top-p, for fine-tuning: --init_from=out/baseline, and a learning_rate to suit.
head = "sparse_softmax"
head_args = {"top_p": 0.95}
