# Overlay: the head of WikiText-103 in windows of 64 tokens, for rows of any order, with the model of brief.py
# and its recipe at three times the rate. Masked diffusion wants a lower one: --learning_rate=6.9e-3.
# python data/wikitext103/prepare.py --tokenizer=bpe4096 --lines=9703
# python train.py config/sigma_gpt.py config/orders_text.py
tokenizer = "bpe4096"
block_size = 64
n_layer = 2
n_head = 3
n_embd = 192
batch_size = 32
max_steps = 500
optimizer = "muon"
learning_rate = 1.2e-2
min_lr = 1.2e-3
readout_lr = 1.6e-2
warmup_steps = 20
beta2 = 0.99
eval_interval = 200
kl_weight = 0.007  # see brief.py
teacher = "out/baseline-orders_text"
