# Overlay: the known language in windows of 32 tokens, about a document each, for rows of any order. A random
# order stays at the frequencies of words until the model attends to the neighbours of a place. The learning
# rate decides when: sigma_gpt_random has a perplexity of 276, 135 and 100 after 300 steps at 4e-3, 8e-3 and
# 1.6e-2.
# python train.py config/sigma_gpt.py config/orders.py
dataset = "grammar"
tokenizer = "words"
block_size = 32
n_layer = 2
n_head = 4
n_embd = 96
batch_size = 64
max_steps = 500
optimizer = "muon"
learning_rate = 1.6e-2
min_lr = 1.6e-3
readout_lr = 1.6e-2
warmup_steps = 20
beta2 = 0.99
eval_interval = 200
kl_weight = 1.0  # of Bayesian rows: the train split is the whole corpus
teacher = "out/baseline-orders"
