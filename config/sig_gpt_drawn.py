# Sig-GPT whose teacher draws 12 further tokens, weighted so that their labels have its distribution as their
# mean: the tail is among them, and a store is a quarter of sig_gpt's.
head = "sigmoid"
labels = "soft"
proposals = "drawn"
candidates = 12
positions = 0.5
