# Softmax trained on the true token and some 512 others, drawn by frequency. Scored with all.
head = "sampled_softmax"
