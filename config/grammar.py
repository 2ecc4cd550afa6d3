# Overlay: the language whose truth is known, and a 1M-parameter model that trains on it in minutes a row on 2 cores. Documents have about 32 tokens:
# a block holds several. In the table: --prompt_tokens=28 --new_tokens=100
dataset = "grammar"
tokenizer = "words"
block_size = 128
n_layer = 3
n_head = 4
n_embd = 128
batch_size = 32
max_steps = 2000
learning_rate = 3e-3
min_lr = 3e-4
warmup_steps = 100
eval_interval = 250
kl_weight = 1.0  # of Bayesian rows: the train split is the whole corpus
teacher = "out/baseline-grammar"
