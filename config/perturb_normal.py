# Perturb-max with normal noise.
head = "perturb_max"
head_args = {"noise": "normal"}
