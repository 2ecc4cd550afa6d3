# Sparsemax, with its Fenchel-Young loss.
head = "sparsemax"
