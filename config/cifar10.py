# CIFAR-10 with the network of Banerjee et al. 2021, which is Brownlee's. Their table says that MaxPool has
# stride 1; their code has Keras' default, 2, as Brownlee has.
dataset = "cifar10"
layers = """
{Conv[3x3,32] ReLU BN}x2 MaxPool[2x2,2] Dropout[0.2]
{Conv[3x3,64] ReLU BN}x2 MaxPool[2x2,2] Dropout[0.3]
{Conv[3x3,128] ReLU BN}x2 MaxPool[2x2,2] Dropout[0.4]
FC[128] ReLU BN Dropout[0.5]
"""
he = True
optimizer = "sgd"
learning_rate = 0.01
batch_size = 100
epochs = 100.0
