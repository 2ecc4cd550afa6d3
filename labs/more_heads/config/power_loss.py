# Softmax trained to a power of the true token's probability, for fine-tuning.
head = "power_loss"
head_args = {"alpha": 0.5}
