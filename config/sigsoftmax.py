# SigSoftmax: F = e^z sigma(z).
head = "sigsoftmax"
