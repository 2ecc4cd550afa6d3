# Overlay: 1.7M parameters, two minutes a row on one core.
# python train.py config/sig_gpt.py config/brief.py --source=DIR
tokenizer = "bpe4096"
block_size = 256
n_layer = 2
n_head = 3
n_embd = 192
batch_size = 4
max_steps = 1000
# What each of these buys: results/recipe.md
optimizer = "muon"
learning_rate = 4e-3
min_lr = 4e-4
readout_lr = 1.6e-2
warmup_steps = 20
beta2 = 0.99  # at 1,024 tokens a step .95 would forget after 14 thousand tokens
eval_interval = 250
# For Bayesian rows: the whole train split would share the KL, but this overlay is meant for its first 0.53%.
# With a weight of 1 perplexity is 1.4x as high (brief_adamw.py).
kl_weight = 0.007
teacher = "out/baseline-brief"
