# MNIST with the network of Banerjee et al. 2021 (table 1, and their code for what the table leaves open).
# python classify.py config/mnist.py --head=taylor
dataset = "mnist"
layers = """
{Conv[3x3,64] ReLU}x4 MaxPool[2x2,2]
{Conv[3x3,64] ReLU}x3 MaxPool[2x2,2]
{Conv[3x3,64] ReLU}x3 MaxPool[2x2,2]
FC[256] ReLU
"""
optimizer = "adam"
learning_rate = 1e-3
batch_size = 100
epochs = 100.0
