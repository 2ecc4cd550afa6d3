# Overlay: mazes of 7 x 7 cells with 3 walls, and a model of 0.5M parameters: 6 to 12 minutes a run on a core.
# block_size is twice the cells: the maze, which is given, and the maze with its path.
# Larger ones: --source="height=9 width=11 walls=4" --block_size=198 --max_steps=20000 --min_lr=0, an hour and
# a half of a core.
# The document's size on a GPU: --source="" --block_size=546 --n_layer=12 --n_head=12 --n_embd=768
#     --optimizer=adamw --learning_rate=6e-4 --min_lr=6e-5 --warmup_steps=2000 --max_steps=100000
dataset = "mazes"
tokenizer = "words"
source = "height=7 width=7 walls=3"
block_size = 98
n_layer = 4
n_head = 4
n_embd = 96
batch_size = 32
max_steps = 3000
optimizer = "muon"
learning_rate = 6e-3
min_lr = 6e-4
warmup_steps = 100
beta2 = 0.99
eval_interval = 1000
kl_weight = 1.0  # of Bayesian rows: the train split is the whole corpus
teacher = "out/baseline-mazes"
