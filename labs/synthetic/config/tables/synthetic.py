# The paper's toy sequences, against their exact truth: what each sampler writes, and in how many rounds.
# T=step    (or product, permutation, walk)
# python table.py config/tables/synthetic.py --flags=--source=$T --name=synthetic_$T --runs=out/synthetic_$T
rows = ["sigma_gpt_random", "masked_diffusion"]
overlay = "synthetic"
seeds = [1, 2, 3]
measure = "orders"
evaluate = "--samplers --split=test"
