# Overlay: a text so small that it is read many times, for rows of any order: 25,000 words of the known
# language in windows of 32. 781 windows, 32 a step: an epoch is 24.4 steps, and 1,560 steps are 64 epochs.
# The evaluations are those after epochs 1, 2, 4, 8, 16, 32 and 64.
dataset = "grammar"
source = "train=25000"  # prepared beside the standard text, in data/grammar/words-train=25000
tokenizer = "words"
block_size = 32
n_layer = 2
n_head = 4
n_embd = 96
batch_size = 32
max_steps = 1560
optimizer = "muon"
learning_rate = 8e-3
min_lr = 8e-4
readout_lr = 1.6e-2
warmup_steps = 20
beta2 = 0.99
eval_steps = [25, 49, 98, 195, 390, 780, 1560]
eval_windows = 1000
kl_weight = 1.0  # of Bayesian rows: the train split is the whole corpus
teacher = "out/baseline-memorise_orders"
