# Softmax towards soft labels: the true token, and 12 tokens that a teacher draws. The labels of sig_gpt_drawn
# without the sigmoid.
head = "soft_targets"
labels = "soft"
proposals = "drawn"
candidates = 12
positions = 0.5
