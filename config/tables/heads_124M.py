# The table at the size of the source document: GPT-2 124M, 49 million tokens a row, in the order of worth.
# All rows have the optimizer and rates with which softmax is best of three short trials, see
# docs/reproduce_124M.md.
#
# The text is English Wikipedia in WikiText's form, and the official validation and test files. It is not
# WikiText-103's train split, so its perplexities are not results on WikiText-103. DIR holds
# train/*.txt, validation/wiki.valid.txt and test/wiki.test.txt:
#     python data/text/prepare.py --source=DIR --tokenizer=gpt2 --out=data/text/gpt2
#     python table.py config/tables/heads_124M.py "--flags=--optimizer=muon ..."
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
