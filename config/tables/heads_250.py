# The heads after 250 steps:
#     python table.py config/tables/heads.py config/tables/heads_250.py --search
#     python table.py config/tables/heads.py config/tables/heads_250.py
name = "heads_250"
flags = "--max_steps=250 --warmup_steps=25 --eval_interval=250"
runs = "out/heads_250"
space = {"learning_rate": [1e-3, 8e-3], "gain": [0.5, 16]}
trials = 16
design = 8
