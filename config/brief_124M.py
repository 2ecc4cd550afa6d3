# Overlay: GPT-2 124M at the budget of the source document's Sig rows, 8,000 steps of 12 x 512 tokens.
# python train.py config/baseline.py config/brief_124M.py
dataset = "text"
max_steps = 8000
eval_interval = 8000
warmup_steps = 200
beta2 = 0.999  # at 6,144 tokens a step .95 would forget after 83 thousand tokens
log_interval = 100
# For Bayesian rows: 28 of the 118 million tokens that would share the KL
kl_weight = 0.24
