# Overlay: brief.py as it was: AdamW at one rate. The row `before` of results/recipe.md.
# python train.py config/sig_gpt.py config/brief_adamw.py --source=DIR
tokenizer = "bpe4096"
block_size = 256
n_layer = 2
n_head = 3
n_embd = 192
batch_size = 4
max_steps = 1000
learning_rate = 2e-3
min_lr = 2e-4
warmup_steps = 60
eval_interval = 250
kl_weight = 0.007  # see brief.py
teacher = "out/baseline-brief_adamw"
