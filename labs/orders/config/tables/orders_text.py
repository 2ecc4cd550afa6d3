# Generation orders on the first part of WikiText-103 in windows of 64 tokens, the document's tables 4 and 5.
# Each row at its own best learning rate of four. An hour of a core.
#     python data/wikitext103/prepare.py --tokenizer=bpe4096 --lines=9703
#     python table.py config/tables/orders_text.py --search
#     python table.py config/tables/orders_text.py
rows = ["baseline", "sigma_gpt_random", "sigma_gpt", "masked_diffusion", "masked_curriculum"]
overlay = "orders_text"
tuned = True
space = {"learning_rate": [5e-3, 4e-2]}
trials = 4
design = 4
seeds = [2, 3, 4]
runs = "out/orders_text"
measure = "orders"
evaluate = "--split=test"
