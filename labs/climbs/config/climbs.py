# Overlay: 64 vertical rates of a climb, 8 seconds each, and a model of 0.2M parameters. A window is a climb.
# Climbs of ADS-B records: --source=FILE (labs/climbs/README.md)
dataset = "climbs"
tokenizer = "words"
source = "simulated"
block_size = 64
n_layer = 2
n_head = 4
n_embd = 96
batch_size = 32
max_steps = 3000
learning_rate = 3e-3
min_lr = 3e-4
warmup_steps = 100
eval_interval = 500
kl_weight = 1.0  # of Bayesian rows: the train split is the whole corpus
teacher = "out/baseline-climbs"
