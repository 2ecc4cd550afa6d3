# Every head on the head of WikiText-103, three seeds: python table.py config/tables/heads.py. Prepare the data first:
# python data/wikitext103/prepare.py --source DIR --tokenizer bpe4096
rows = [
    "baseline", "temperature", "smooth_gpt", "smooth_gpt_10", "confidence_penalty", "unlikelihood",
    "gs_softmax_f1", "gs_softmax_f2", "sigsoftmax", "taylor_2", "taylor_6", "taylor_inf", "sm_softmax", "sm_taylor", "am_softmax",
    "sparsemax", "entmax15", "entmax", "perturb_normal", "perturb_exponential", "perturb_gumbel",
    "bayes_gpt", "sig_gpt --teacher=out/baseline-small-{seed}", "sig_gpt_sum --teacher=out/baseline-small-{seed}",
    "sig_gpt_pw --teacher=out/baseline-small-{seed}", "sig_gpt_as_published --teacher=out/baseline-small-{seed}",
    # fine-tuning: from the baseline of the same seed, a quarter of its steps
    "sparse_softmax_k --init_from=out/baseline-small-{seed} --max_steps=250 --learning_rate=5e-4 --min_lr=5e-5",
    "sparse_softmax_p --init_from=out/baseline-small-{seed} --max_steps=250 --learning_rate=5e-4 --min_lr=5e-5",
    "smooth_accuracy --init_from=out/baseline-small-{seed} --max_steps=250 --learning_rate=5e-4 --min_lr=5e-5",
    "stop_gradient --init_from=out/baseline-small-{seed} --max_steps=250 --learning_rate=5e-4 --min_lr=5e-5",
]
overlay = "small"
seeds = [1, 2, 3]
