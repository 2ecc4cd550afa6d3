# Which head recovers the truth: python table.py config/tables/grammar.py. Prepare the data first: python data/grammar/prepare.py
rows = [
    "baseline", "temperature", "smooth_gpt", "smooth_gpt_10", "confidence_penalty", "unlikelihood",
    "gs_softmax_f1", "gs_softmax_f2", "sigsoftmax", "taylor_2", "taylor_6", "taylor_inf", "sm_softmax", "sm_taylor", "am_softmax",
    "sparsemax", "entmax15", "entmax", "perturb_normal", "perturb_exponential", "perturb_gumbel",
    "bayes_gpt", "sig_gpt --teacher=out/baseline-grammar-{seed}", "sig_gpt_sum --teacher=out/baseline-grammar-{seed}",
    "sig_gpt_pw --teacher=out/baseline-grammar-{seed}", "sig_gpt_as_published --teacher=out/baseline-grammar-{seed}",
    "sparse_softmax_k --init_from=out/baseline-grammar-{seed} --max_steps=500 --learning_rate=8e-4 --min_lr=8e-5",
    "sparse_softmax_p --init_from=out/baseline-grammar-{seed} --max_steps=500 --learning_rate=8e-4 --min_lr=8e-5",
    "smooth_accuracy --init_from=out/baseline-grammar-{seed} --max_steps=500 --learning_rate=8e-4 --min_lr=8e-5",
    "stop_gradient --init_from=out/baseline-grammar-{seed} --max_steps=500 --learning_rate=8e-4 --min_lr=8e-5",
]
overlay = "grammar"
seeds = [1, 2, 3]
evaluate = "--prompt_tokens=28 --new_tokens=100"
