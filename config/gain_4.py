# Softmax with its logits times 4: the control for every head whose slope at the start is above 1.
head = "softmax"
gain = 4.0
