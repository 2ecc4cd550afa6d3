# Does the order of the heads last? Six rows over 5,600 steps that read 20 MB of novels once, each with its
# own search. DIR is a folder with train/, validation/ and test/: docs/your_own_text.md.
#     python table.py config/tables/heads_novels.py --search --jobs=2
#     python table.py config/tables/heads_novels.py --jobs=2
rows = [
    "baseline",
    "gs_softmax_f1",
    "bayes_gpt --kl_weight=1.4e-3",
    "soft_gpt --teacher={first}",
    "sig_gpt --teacher={first}",
    "sig_gpt_sum --teacher={first} --head_args.sum_weight=0.25",
]
overlay = "brief"
flags = "--dataset=text --source=DIR --max_steps=5600 --eval_interval=1400"
seeds = [2, 3]
tuned = True
runs = "out/heads_novels"
space = {"learning_rate": [2e-3, 8e-3], "readout_lr": [4e-3, 2.4e-2], "gain": [0.25, 2]}
trials = 4
design = 4
