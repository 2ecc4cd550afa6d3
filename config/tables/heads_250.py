# The heads after 250 steps, each at its own best of 8 trials, on five fresh seeds:
# python tune.py config/tables/heads.py config/tables/heads_250.py
# python table.py config/tables/heads.py config/tables/heads_250.py
name = "heads_250"
flags = "--max_steps=250 --warmup_steps=25 --eval_interval=250"
runs = "out/heads_250"
tuned = True
seeds = [2, 3, 4, 5, 6]
