# Generation orders on the known language, against its exact two-sided truth. Each row at its own best
# learning rate of four. Some 90 minutes of a core.
#     python table.py config/tables/orders_known.py --search
#     python table.py config/tables/orders_known.py
rows = ["baseline", "sigma_gpt_random", "sigma_gpt", "sigma_gpt_100", "masked_diffusion", "masked_curriculum"]
overlay = "orders"
tuned = True
space = {"learning_rate": [8e-3, 6e-2]}
trials = 4
design = 4
seeds = [2, 3, 4]
runs = "out/orders_known"
measure = "orders"
evaluate = "--split=test --samplers --texts=200 --exact=64"
