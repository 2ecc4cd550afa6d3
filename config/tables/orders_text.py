# Generation orders on the first part of WikiText-103 in windows of 64 tokens, the document's tables 4 and 5.
# Each row has the learning rate that is its best of three on the known language (orders_known.py).
#     python data/wikitext103/prepare.py --tokenizer=bpe4096 --lines=9703
#     python table.py config/tables/orders_text.py
rows = ["baseline", "sigma_gpt_random", "sigma_gpt"]
overlay = "orders_text"
tuned = True
tuning = "results/orders_known.jsonl"
space = {"learning_rate": [5e-3, 4e-2]}
trials = 3
design = 3
seeds = [2, 3, 4]
runs = "out/orders_text"
measure = "orders"
evaluate = "--split=test"
