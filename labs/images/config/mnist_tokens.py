# Overlay: MNIST as a class and 49 codes an image, on a CPU: minutes.
# --source="mnist vq in=DIR" gives the folder with its files.
dataset = "image_tokens"
tokenizer = "words"
source = "mnist vq"
block_size = 50
n_layer = 4
n_head = 4
n_embd = 128
batch_size = 32
max_steps = 2000
learning_rate = 2e-3
min_lr = 2e-4
warmup_steps = 100
eval_interval = 500
log_interval = 50
kl_weight = 1.0  # of Bayesian rows: the train split is the whole corpus
