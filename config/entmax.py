# Entmax with alpha = 1.25, with its Fenchel-Young loss.
head = "entmax"
head_args = {"alpha": 1.25}
