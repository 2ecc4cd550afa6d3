# Where a text is read many times, does any order overtake left to right? 25,000 words of the known language,
# read 64 times. Each row at the learning rate, of four, with the lowest evaluation within 16 readings: at the
# end of 64 the best rate from left to right would be the one that learns the least by heart.
#     python table.py config/tables/memorise_orders.py --search --name=memorise_orders_16 \
#         --flags=--max_steps=390
#     python table.py config/tables/memorise_orders.py
rows = ["baseline", "dropout", "sigma_gpt_random", "sigma_gpt", "masked_diffusion", "masked_curriculum"]
overlay = "memorise_orders"
tuned = True
tuning = "results/memorise_orders_16.jsonl"
space = {"learning_rate": [2e-3, 6e-2]}
trials = 4
design = 4
seeds = [2, 3, 4]
runs = "out/memorise_orders"
measure = "curve"
evaluate = "--part"
