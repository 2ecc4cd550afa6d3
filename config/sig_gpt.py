# Sig-GPT: multi-label sigmoid, a yes or no for each word by itself. Labels: the true token, and the tokens
# that a teacher proposes, a pretrained GPT-2 or a softmax of ours, with its probabilities as their values.
head = "sigmoid"
labels = "soft"
candidates = 50
positions = 0.5
