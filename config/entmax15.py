# Entmax with alpha = 1.5, with its Fenchel-Young loss.
head = "entmax15"
