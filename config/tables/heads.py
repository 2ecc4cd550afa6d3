# The main table, on the recipe of config/brief.py: each row with its own learning rates, gain and, where it
# has one, constant, then five fresh seeds. Some 20 core-hours; what is done is kept.
#     python data/wikitext103/prepare.py --tokenizer=bpe4096 --lines=9703
#     python table.py config/tables/heads.py --search --jobs=2
#     python table.py config/tables/heads.py --jobs=2
# The heads of labs/more_heads have the same in more_heads.py; results/heads has their rows of ed9d419.
# Untuned, at each config file's own gain: --tuned=False --name=heads_untuned
about = {
    "heads": "# Output heads on the first articles of WikiText-103\n\n"
    "Every row is a GPT-2 of 1.7M parameters with another output head, trained on the first 162 articles of "
    "WikiText-103 (0.8M tokens of 4,096) and measured on the official test file. "
    "All train for 1,000 steps of 1,024 tokens by the recipe of config/brief.py; each head has the learning "
    "rates, the gain and, where it has one, the constant that were best in its own search of 12 trainings "
    "(heads.tune.md), then five fresh seeds, scored at the end of training. "
    "± is half of the 95% interval over these seeds, (+x) the distance to human text, and * marks every row "
    "that may be the best of its column; docs/metrics.md defines the columns."
}
rows = [
    "baseline",
    "learned_gain",
    "smooth_gpt",
    "smooth_gpt_10",
    "gs_softmax_f1",
    "gs_softmax_f2",
    "sigsoftmax",
    "taylor_2",
    "taylor_6",
    "taylor_inf",
    "sm_softmax",
    "sm_taylor",
    "am_softmax",
    "sparsemax",
    "entmax15",
    "entmax",
    "perturb_normal",
    "perturb_exponential",
    "bayes_gpt",
    "bayes_sig_gpt --teacher={first}",
    "soft_gpt --teacher={first}",
    "sig_gpt --teacher={first}",
    "sig_gpt_sum --teacher={first}",
    "sig_gpt_pw --teacher={first}",
    "sig_gpt_as_published --teacher={first}",
]
overlay = "brief"
seeds = [2, 3, 4, 5, 6]
tuned = True
runs = "out/heads"
space = {"learning_rate": [2e-3, 8e-3], "readout_lr": [4e-3, 4e-2], "gain": [0.25, 8]}
own_space = {
    "smooth_gpt": {"head_args.eps": [0.001, 0.2]},
    "am_softmax": {"head_args.m": [0.02, 2]},
    "entmax": {"head_args.alpha": [1.05, 2]},
    "bayes_gpt": {"kl_weight": [7e-4, 7e-2]},
    "bayes_sig_gpt": {"head_args.pos_weight": [2, 5000], "kl_weight": [7e-4, 7e-2]},
    "sig_gpt_sum": {"head_args.sum_weight": [0.01, 100]},
    "sig_gpt_pw": {"head_args.pos_weight": [2, 5000]},
}
cost = "bench/training_rows.json"  # the cost column
trials = 12
design = 8
