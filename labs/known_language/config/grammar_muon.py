# Overlay: grammar.py's language and model on the recipe of brief.py (Muon, a readout rate of its own).
dataset = "grammar"
tokenizer = "words"
block_size = 128
n_layer = 2
n_head = 4
n_embd = 96
batch_size = 16
max_steps = 1000
optimizer = "muon"
learning_rate = 4e-3
min_lr = 4e-4
readout_lr = 1.6e-2
warmup_steps = 20
beta2 = 0.99
eval_interval = 200
kl_weight = 1.0  # of Bayesian rows: the train split is the whole corpus
teacher = "out/baseline-grammar_muon"
