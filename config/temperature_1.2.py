# Softmax trained at temperature 1.2 (GS-Softmax document, table 7).
head = "softmax"
gain = 0.8333333
