# The document's mazes: how many are solved by each order, and how many by a shortest path.
#     python table.py config/tables/mazes.py --jobs=2
rows = ["baseline", "sigma_gpt", "sigma_gpt_random", "masked_diffusion"]
overlay = "mazes"
seeds = [1, 2, 3]
runs = "out/mazes"
measure = "orders"
evaluate = "--samplers --split=test"
