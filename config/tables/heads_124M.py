# The table at the size of the source document: GPT-2 124M, 49 million tokens a row, in the order of worth.
# bench/gpu.py makes it row by row: it gives all rows the optimizer and rates with which softmax was best of
# three short trials, and measures 1,000 texts of each by both protocols.
#
# The text is English Wikipedia in WikiText's form, and the official validation and test files. It is not
# WikiText-103's train split, so its perplexities are not results on WikiText-103. DIR holds
# train/*.txt, validation/wiki.valid.txt and test/wiki.test.txt:
#     python data/text/prepare.py --source=DIR --tokenizer=gpt2 --out=data/text/gpt2
#     python bench/gpu.py --parts trials 124M
rows = [
    "baseline",
    "smooth_gpt_10",
    "bayes_gpt",
    "gs_softmax_f1",
    "sig_gpt_as_published --teacher={first}",
    "sig_gpt --teacher={first}",
    "soft_gpt --teacher={first}",
    "sig_gpt_sum --teacher={first}",
    "sig_gpt_pw --teacher={first}",
]
overlay = "brief_124M"
seeds = [1]
runs = "out/heads_124M"
