# The document's mazes: how many are solved by each order, and how many by a shortest path. Each row at its
# own best learning rate of four for 1,000 steps. An hour and a half of a core.
#     python table.py config/tables/mazes.py --search --name=mazes_1000 --flags=--max_steps=1000
#     python table.py config/tables/mazes.py
rows = ["baseline", "sigma_gpt", "masked_diffusion"]
overlay = "mazes"
tuned = True
tuning = "results/mazes_1000.jsonl"
space = {"learning_rate": [2e-3, 2e-2]}
trials = 4
design = 4
seeds = [2, 3, 4]
runs = "out/mazes"
measure = "orders"
evaluate = "--samplers --split=test"
