# From left to right, but up to 15 later tokens may come before one: the order of set diffusion.
head = "softmax"
order = "sliding_16"
