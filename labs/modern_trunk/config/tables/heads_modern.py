# Does the order of the heads hold on another trunk? Five rows of heads.py on that of today's small models
# (rotary positions, RMSNorm, squared ReLU, an output projection of its own), each with its own search.
#     python data/wikitext103/prepare.py --tokenizer=bpe4096 --lines=9703
#     python table.py config/tables/heads_modern.py --search --jobs=2
#     python table.py config/tables/heads_modern.py --jobs=2
rows = [
    "baseline",
    "gs_softmax_f1",
    "bayes_gpt --kl_weight=1.4e-3",
    "soft_gpt --teacher={first}",
    "sig_gpt --teacher={first}",
]
overlay = "brief"
flags = "--trunk=modern --tied=False"
seeds = [2, 3, 4]
tuned = True
runs = "out/heads_modern"
space = {"learning_rate": [2e-3, 8e-3], "readout_lr": [4e-3, 2.4e-2], "gain": [0.25, 2]}
trials = 4
design = 4
