# Fill in the middle: prefix, suffix, middle in half of the sequences, the others from left to right.
head = "softmax"
order = "fim"
