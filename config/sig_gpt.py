# Sig-GPT: multi-label sigmoid. Labels: the true token, and the tokens that a pretrained GPT-2 proposes, with
# its probabilities as their values.
head = "sigmoid"
labels = "soft"
teacher = "gpt2"
candidates = 50
positions = 0.5
