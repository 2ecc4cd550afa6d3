# Softmax trained on the true token and 512 others, drawn by frequency. Scored with all.
head = "sampled_softmax"
