# Softmax trained at temperature .8 (GS-Softmax document, table 7).
head = "softmax"
gain = 1.25
