# Every head on the first part of WikiText-103, three seeds: python table.py config/tables/heads.py
# Prepare the data first: python data/wikitext103/prepare.py --source DIR --tokenizer bpe4096
# Each head at its own best: python tune.py with the same arguments, then table.py --tuned --seeds=2,3,4,5,6
# The larger model takes half a day on 2 cores: --overlay=small --name=heads_small
rows = [
    "baseline",
    "temperature",
    "smooth_gpt",
    "smooth_gpt_10",
    "confidence_penalty",
    "unlikelihood",
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
    "perturb_gumbel",
    "bayes_gpt",
    "sig_gpt --teacher={first}",
    "sig_gpt_sum --teacher={first}",
    "sig_gpt_pw --teacher={first}",
    "sig_gpt_as_published --teacher={first}",
    # fine-tuning, with the baseline's gain: from the baseline of the same seed, a quarter of its steps
    "sparse_softmax_k --init_from={first} --gain={gain} --max_steps=250 --learning_rate=1e-3 --min_lr=1e-4",
    "sparse_softmax_p --init_from={first} --gain={gain} --max_steps=250 --learning_rate=1e-3 --min_lr=1e-4",
    "smooth_accuracy --init_from={first} --gain={gain} --max_steps=250 --learning_rate=1e-3 --min_lr=1e-4",
    "stop_gradient --init_from={first} --gain={gain} --max_steps=250 --learning_rate=1e-3 --min_lr=1e-4",
]
overlay = "brief"
seeds = [1, 2, 3]
