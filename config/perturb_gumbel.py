# Perturb-max with Gumbel noise: the baseline, by another name.
head = "perturb_max"
head_args = {"noise": "gumbel"}
