# Overlay: scikit-learn's digits as a class and 16 codes each, and a model that learns them in a minute.
# python labs/images/sample.py out/RUN --class 7 --cfg 2 shows what it draws. See labs/images/README.md.
dataset = "image_tokens"
tokenizer = "words"
source = "digits vq"
block_size = 17
n_layer = 2
n_head = 4
n_embd = 64
dropout = 0.1
batch_size = 32
max_steps = 800
learning_rate = 3e-3
min_lr = 3e-4
warmup_steps = 50
weight_decay = 0.1
eval_interval = 100
log_interval = 50
kl_weight = 1.0  # of Bayesian rows: the train split is the whole corpus
