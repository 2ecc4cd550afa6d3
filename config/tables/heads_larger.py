# The heads in a model of 4.2M parameters instead of 1.7M, at the points that the smaller was tuned to.
# python table.py config/tables/heads.py config/tables/heads_larger.py
name = "heads_larger"
flags = "--n_layer=4 --n_head=4 --n_embd=256"
tuning = "results/heads.jsonl"
seeds = [2, 3, 4]
runs = "out/heads_larger"
