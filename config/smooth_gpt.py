# Smooth-GPT: softmax with label smoothing. In training every word has a share of the label: the true one 95%,
# all others 5% together. It is scored without smoothing.
head = "label_smoothing"
head_args = {"eps": 0.05}
