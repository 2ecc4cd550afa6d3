# Sig-GPT with the positive weight (eq. 5).
head = "sigmoid"
head_args = {"pos_weight": 1000.0}
labels = "soft"
candidates = 50
positions = 0.5
