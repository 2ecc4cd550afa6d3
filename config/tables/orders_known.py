# Generation orders on the known language, against its exact two-sided truth: what a random order learns
# early, in 250 steps, with a curriculum and without. Each row at its own best learning rate of three.
#     python table.py config/tables/orders_known.py --search
#     python table.py config/tables/orders_known.py
rows = ["baseline", "sigma_gpt_random", "sigma_gpt"]
overlay = "orders"
flags = "--max_steps=250"
tuned = True
space = {"learning_rate": [5e-3, 4e-2]}
trials = 3
design = 3
seeds = [2, 3, 4]
runs = "out/orders_known"
measure = "orders"
evaluate = "--split=test"
