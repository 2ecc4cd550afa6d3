# Generation orders on the first part of WikiText-103, the document's tables 4 and 5:
#     python data/wikitext103/prepare.py --tokenizer=bpe4096 --lines=9703
#     python table.py config/tables/orders.py --jobs=2
rows = [
    "baseline",
    "sigma_gpt",
    "sigma_gpt_10",
    "sigma_gpt_100",
    "sigma_gpt_random",
    "fractal_gpt",
    "conditional_gpt",
    "masked_diffusion",
]
overlay = "small"
seeds = [1, 2, 3]
runs = "out/orders"
measure = "orders"
