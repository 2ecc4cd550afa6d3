# Overlay: 2.6M parameters, minutes a row on 2 cores.
# python data/wikitext103/prepare.py --tokenizer=bpe4096 --lines=9703
# python train.py config/sig_gpt.py config/small.py
tokenizer = "bpe4096"
block_size = 256
n_layer = 4
n_head = 3
n_embd = 192
batch_size = 16
max_steps = 1000
learning_rate = 2e-3
min_lr = 2e-4
warmup_steps = 60
eval_interval = 250
# For Bayesian rows: the whole train split would share the KL, but this overlay is meant for its first 0.53%.
# With a weight of 1 perplexity is 1.4x as high.
kl_weight = 0.007
teacher = "out/baseline-small"
