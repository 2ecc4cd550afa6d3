# Softmax trained by the Brier score, for fine-tuning.
head = "brier"
