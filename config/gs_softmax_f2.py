# GS-Softmax with F2 = e^z below 0, 1 + z above.
head = "gs_softmax_f2"
