# The same rows on the known language, against its exact two-sided truth, with what each sampler writes.
# Each at its own best learning rate of four: at orders.py's, masked diffusion was still at the frequencies of
# words after 4,000 steps (one seed).
#     python table.py config/tables/orders.py config/tables/orders_grammar.py --search --jobs=2
#     python table.py config/tables/orders.py config/tables/orders_grammar.py --jobs=2
name = "orders_grammar"
overlay = "orders"
tuned = True
space = {"learning_rate": [1e-3, 8e-3]}
trials = 4
design = 4
seeds = [2, 3, 4]
runs = "out/orders_grammar"
evaluate = "--samplers --split=test"
