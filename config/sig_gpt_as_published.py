# Sig-GPT with the labels of the published code, to show what they do. At half of the positions the labels are
# the teacher's top 50, without the true token, each with value 1. The other half has no positive label.
head = "sigmoid"
labels = "hard"
candidates = 50
positions = 0.5
keep_true = False
