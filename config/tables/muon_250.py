# heads_250.py with Muon for the trunk's matrices: does the gain still order heads there?
#     python table.py config/tables/heads.py config/tables/muon_250.py --search
#     python table.py config/tables/heads.py config/tables/muon_250.py
name = "muon_250"
flags = "--optimizer=muon --max_steps=250 --warmup_steps=25 --eval_interval=250"
runs = "out/muon_250"
space = {"learning_rate": [1e-3, 8e-3], "gain": [0.5, 16]}
trials = 8
design = 4
