# Sigmoids with the true token alone: what Sig-GPT is without a teacher.
head = "sigmoid"
