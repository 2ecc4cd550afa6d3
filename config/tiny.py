# Overlay: the embedded corpus and a model that trains in under a minute on 2 cores. Used by `make demo`.
dataset = "demo"
tokenizer = "bpe2048"
block_size = 128
n_layer = 2
n_head = 4
n_embd = 128
batch_size = 16
max_steps = 300
learning_rate = 3e-3
min_lr = 3e-4
warmup_steps = 30
eval_interval = 100
teacher = "out/baseline-tiny"
