# Softmax towards soft labels: the true token, and the tokens that a pretrained GPT-2 proposes, with its
# probabilities. What sig_gpt's labels are worth without the sigmoid.
head = "soft_targets"
labels = "soft"
candidates = 50
positions = 0.5
