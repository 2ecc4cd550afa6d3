# Perturb-max with exponential noise: permute-and-flip.
head = "perturb_max"
head_args = {"noise": "exponential"}
