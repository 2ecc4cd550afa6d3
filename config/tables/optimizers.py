# Softmax under AdamW and under Muon, each with the same search of both learning rates and the gain, then
# three fresh seeds: what is left of the recipe's largest part. AdamW has 60 warm-up steps, for 20 are too few
# for it. An hour of a core.
#     python data/wikitext103/prepare.py --tokenizer=bpe4096 --lines=9703
#     python table.py config/tables/optimizers.py --search --jobs=2
#     python table.py config/tables/optimizers.py --jobs=2
config = "baseline"
overlay = "brief"
rows = ["adamw --optimizer=adamw --warmup_steps=60", "muon"]
tuned = True
space = {"learning_rate": [1e-3, 8e-3], "readout_lr": [2e-3, 4e-2], "gain": [0.25, 8]}
trials = 12
design = 8
seeds = [2, 3, 4]
runs = "out/optimizers"
