# How much of the width a head needs: softmax of a bounded rank on the recipe at a gain of .6. `factored` has
# the two maps, and no bound below the width of 192. Not tuned. Half an hour of a core.
#     python data/wikitext103/prepare.py --tokenizer=bpe4096 --lines=9703
#     python table.py config/tables/head_rank.py --jobs=2
name = "head_rank"
config = "baseline"
overlay = "brief"
rows = [
    "recipe",
    "factored --head_rank=192",
    "rank_128 --head_rank=128",
    "rank_64 --head_rank=64",
    "rank_32 --head_rank=32",
    "rank_16 --head_rank=16",
]
seeds = [1, 2, 3]
flags = "--eval_interval=1000 --gain=0.6"
measure = "curve"
runs = "out/head_rank"
