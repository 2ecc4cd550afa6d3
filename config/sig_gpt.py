# Sig-GPT: multi-label sigmoid; the true token, and a pretrained GPT-2's proposals with its probabilities as label values.
head = "sigmoid"
labels = "soft"
teacher = "gpt2"
candidates = 50
positions = 0.5
