# Sig-GPT with the labels of the published code, to show what they do: at half of the positions the teacher's top 50 in place of the true
# token, each with value 1; no positive at all at the other half.
head = "sigmoid"
labels = "hard"
teacher = "gpt2"
candidates = 50
positions = 0.5
keep_true = False
