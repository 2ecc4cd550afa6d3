# Sparse softmax by top-k, for fine-tuning: --init_from=out/baseline, and a learning_rate to suit.
head = "sparse_softmax"
head_args = {"top_k": 50}
