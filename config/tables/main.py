# The main table, on the recipe of config/brief.py: each row with its own learning rates, gain and, where it
# has one, constant. Some 20 core-hours; what is done is kept.
#     python data/wikitext103/prepare.py --tokenizer=bpe4096 --lines=9703
#     python table.py config/tables/heads.py config/tables/main.py --search --jobs=2
#     python table.py config/tables/heads.py config/tables/main.py --jobs=2
name = "main"
overlay = "brief"
runs = "out/main"
space = {"learning_rate": [2e-3, 8e-3], "readout_lr": [4e-3, 4e-2], "gain": [0.25, 8]}
own_space = {
    "smooth_gpt": {"head_args.eps": [0.001, 0.2]},
    "confidence_penalty": {"head_args.beta": [0.003, 0.3]},
    "unlikelihood": {"head_args.alpha": [0.01, 2]},
    "z_loss": {"head_args.alpha": [1e-6, 1e-2]},
    "softcap": {"head_args.cap": [5, 60]},
    "am_softmax": {"head_args.m": [0.02, 2]},
    "entmax": {"head_args.alpha": [1.05, 2]},
    "bayes_gpt": {"kl_weight": [7e-4, 7e-2]},
    "sig_gpt_sum": {"head_args.sum_weight": [0.01, 100]},
    "sig_gpt_pw": {"head_args.pos_weight": [2, 5000]},
}
trials = 12
design = 8
