# MNIST with a hundredth of the arithmetic of the document's network, and five epochs: minutes on a core.
dataset = "mnist"
layers = "Conv[3x3,16] ReLU MaxPool[2x2,2] Conv[3x3,32] ReLU MaxPool[2x2,2] FC[128] ReLU"
optimizer = "adam"
learning_rate = 1e-3
batch_size = 100
epochs = 5.0
