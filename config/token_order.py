# Softmax beside a second projection that ranks the upcoming tokens by how soon they come.
head = "softmax"
auxiliary = "token_order"
auxiliary_args = {"weight": 1.0}
