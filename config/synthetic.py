# Overlay: sequences of 100 tokens whose exact distributions are known, and a model of 0.2M parameters.
# Another task: --source=step, permutation or walk. A window is a sequence: block_size is its length.
dataset = "synthetic"
tokenizer = "words"
source = "product"
block_size = 100
n_layer = 2
n_head = 4
n_embd = 96
batch_size = 16
max_steps = 1000
learning_rate = 3e-3
min_lr = 3e-4
warmup_steps = 100
eval_interval = 200
kl_weight = 1.0  # of Bayesian rows: the train split is the whole corpus
teacher = "out/baseline-synthetic"
