# Masked diffusion that begins where few places are hidden: at most 30%, then linearly more, all at the end
head = "softmax"
trunk = "masked"
trunk_args = {"curriculum": "few_hidden", "curriculum_share": 0.3}
