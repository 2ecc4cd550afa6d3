# Some places from left to right, then the rest from left to right: in the manner of AC-GPT.
head = "softmax"
order = "conditional"
