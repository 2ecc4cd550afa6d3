# Harmonic loss: p ~ (1 - cos)^-n, with n = gain sqrt(n_embd).
head = "harmonic"
