# Softmax that also predicts the token after the next one, from a linear map of the hidden state.
head = "softmax"
auxiliary = "multi_token"
auxiliary_args = {"weight": 0.3}
