# Overlay: a novel that comes along (data/tale) and 1.1M parameters: three minutes of a core. It reads the
# book seven times, so it learns to spell and to begin sentences, no more.
dataset = "tale"
tokenizer = "bpe1024"
block_size = 256
n_layer = 3
n_head = 4
n_embd = 160
dropout = 0.1
batch_size = 4
max_steps = 700
optimizer = "muon"
learning_rate = 4e-3
min_lr = 4e-4
readout_lr = 1.6e-2
warmup_steps = 20
beta2 = 0.99
eval_interval = 100
teacher = "out/baseline-tale"
