# Overlay: the language whose truth is known, and a model of 0.5M parameters: two minutes a row on one core.
# Documents have about 32 tokens, so a block holds several.
# In the table: --prompt_tokens=28 --new_tokens=100
dataset = "grammar"
tokenizer = "words"
block_size = 128
n_layer = 2
n_head = 4
n_embd = 96
batch_size = 16
max_steps = 1000
learning_rate = 6e-3
min_lr = 6e-4
warmup_steps = 100
eval_interval = 200
kl_weight = 1.0  # of Bayesian rows: the train split is the whole corpus
teacher = "out/baseline-grammar"
