# Masked (absorbing) diffusion on the same trunk: it sees all places, and fills in those that are hidden.
head = "softmax"
trunk = "masked"
