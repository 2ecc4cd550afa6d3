# Softmax trained by the spherical score, for fine-tuning.
head = "spherical"
