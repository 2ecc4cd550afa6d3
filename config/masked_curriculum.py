# Masked diffusion that begins where few places are hidden: at most 30%, then linearly more, all at the end
head = "softmax"
order = "masked"
curriculum = "few_hidden"
curriculum_share = 0.3
