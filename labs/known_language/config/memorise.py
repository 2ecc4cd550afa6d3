# Overlay: grammar.py's language and model, and a text so small that it is learnt by heart.
# The train split has 50,012 tokens: 390 windows of 128. Each epoch reads all windows once, in an order of its
# own, 16 a step: an epoch is 24.4 steps, and 1,560 steps are 64 epochs. Held-out text is the standard one.
# The evaluations are those after epochs 1, 2, 4, 8, 16, 32 and 64.
# In the table: --prompt_tokens=28 --new_tokens=100
dataset = "grammar"
source = "train=50000"  # prepared beside the standard text, in data/grammar/words-train=50000
tokenizer = "words"
block_size = 128
n_layer = 2
n_head = 4
n_embd = 96
batch_size = 16
max_steps = 1560
learning_rate = 6e-3
min_lr = 6e-4
warmup_steps = 100
eval_steps = [25, 49, 98, 195, 390, 780, 1560]
kl_weight = 1.0  # of Bayesian rows: the train split is the whole corpus
teacher = "out/baseline-memorise"
