# The heads after 4,000 steps (5.2 epochs), at the points that 1,000 steps were tuned to.
# python table.py config/tables/heads.py config/tables/heads_4000.py
name = "heads_4000"
flags = "--max_steps=4000 --eval_interval=500"
tuning = "results/heads.jsonl"
seeds = [2, 3, 4]
runs = "out/heads_4000"
