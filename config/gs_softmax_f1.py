# GS-Softmax with F1 = sigmoid.
head = "gs_softmax_f1"
