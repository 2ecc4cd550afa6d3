# Every head at its own best on the first part of WikiText-103: the learning rate and the gain of each row are
# those of an equal search, then five fresh seeds. Days on 2 cores; what is done is kept.
#     python data/wikitext103/prepare.py --tokenizer=bpe4096 --lines=9703
#     python table.py config/tables/heads.py --search --jobs=2
#     python table.py config/tables/heads.py --jobs=2
# Untuned, at each config file's own gain: --tuned=False --name=heads_untuned
#
# The space of the search is the neighbourhood of what heads_250.py found in one twice as large.
rows = [
    "baseline",
    "learned_gain",
    "smooth_gpt",
    "smooth_gpt_10",
    "confidence_penalty",
    "unlikelihood",
    "z_loss",
    "softcap",
    "sigmoid_cap",
    "stablemax",
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
    # fine-tuning, with the baseline's gain: from the baseline of the same seed, a quarter of its steps
    "sparse_softmax_k --init_from={first} --gain={gain} --max_steps=250 --learning_rate=1e-3 --min_lr=1e-4"
    " --readout_lr=0",
    "sparse_softmax_p --init_from={first} --gain={gain} --max_steps=250 --learning_rate=1e-3 --min_lr=1e-4"
    " --readout_lr=0",
    "smooth_accuracy --init_from={first} --gain={gain} --max_steps=250 --learning_rate=1e-3 --min_lr=1e-4"
    " --readout_lr=0",
    "power_loss --init_from={first} --gain={gain} --max_steps=250 --learning_rate=1e-3 --min_lr=1e-4"
    " --readout_lr=0",
    "brier --init_from={first} --gain={gain} --max_steps=250 --learning_rate=1e-3 --min_lr=1e-4"
    " --readout_lr=0",
    "spherical --init_from={first} --gain={gain} --max_steps=250 --learning_rate=1e-3 --min_lr=1e-4"
    " --readout_lr=0",
    "stop_gradient --init_from={first} --gain={gain} --max_steps=250 --learning_rate=1e-3 --min_lr=1e-4"
    " --readout_lr=0",
]
overlay = "brief_adamw"
seeds = [2, 3, 4, 5, 6]
tuned = True
runs = "out/heads"
space = {"learning_rate": [1e-3, 4e-3], "gain": [0.7, 8]}
trials = 8
design = 4
