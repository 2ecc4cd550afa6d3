# Overlay: the known language in windows of 32 tokens, about a document each, for rows of any order. In those
# of 128 tokens a model of this size has learnt little more than the frequencies of words after 1,000 steps.
# python train.py config/sigma_gpt.py config/orders.py
dataset = "grammar"
tokenizer = "words"
block_size = 32
n_layer = 2
n_head = 4
n_embd = 96
batch_size = 64
max_steps = 4000
learning_rate = 6e-3
min_lr = 6e-4
warmup_steps = 100
eval_interval = 1000
kl_weight = 1.0  # of Bayesian rows: the train split is the whole corpus
teacher = "out/baseline-orders"
