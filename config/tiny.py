# Overlay: a small known language of 420 words (labs/known_language) and a model of 0.3M parameters. It learns
# most of it in half a minute on one core. A document has about 32 tokens, a window two. Used by `make demo`.
# On WikiText: --dataset=wikitext103 --tokenizer=bpe4096 --source= --name=...
dataset = "grammar"
source = "train=400000 validation=20000 test=20000 themes=8 nouns=40 verbs=20 adjectives=20 adverbs=10"
tokenizer = "words"
block_size = 64
n_layer = 2
n_head = 4
n_embd = 96
batch_size = 32
max_steps = 250
optimizer = "muon"
learning_rate = 4e-3
min_lr = 4e-4
readout_lr = 1.6e-2
warmup_steps = 20
beta2 = 0.99
eval_interval = 125
teacher = "out/baseline-tiny"
