# Entmax with alpha = 1.5, with its Fenchel-Young loss: words of low scores have a probability of exactly 0.
head = "entmax15"
