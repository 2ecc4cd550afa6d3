# The lab's heads beside softmax, by the recipe and the search of the main table, config/tables/heads.py.
#     python data/wikitext103/prepare.py --tokenizer=bpe4096 --lines=9703
#     python table.py config/tables/more_heads.py --search --jobs=2
#     python table.py config/tables/more_heads.py --jobs=2
rows = [
    "baseline",
    "confidence_penalty",
    "unlikelihood",
    "z_loss",
    "softcap",
    "sigmoid_cap",
    "stablemax",
    "harmonic",
]
overlay = "brief"
seeds = [2, 3, 4, 5, 6]
tuned = True
runs = "out/heads"
space = {"learning_rate": [2e-3, 8e-3], "readout_lr": [4e-3, 4e-2], "gain": [0.25, 8]}
own_space = {
    "confidence_penalty": {"head_args.beta": [0.003, 0.3]},
    "unlikelihood": {"head_args.alpha": [0.01, 2]},
    "z_loss": {"head_args.alpha": [1e-6, 1e-2]},
    "softcap": {"head_args.cap": [5, 60]},
}
trials = 12
design = 8
