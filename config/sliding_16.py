# From left to right, but up to 15 later tokens may come before one: set diffusion's schedule.
head = "softmax"
order = "sliding_16"
