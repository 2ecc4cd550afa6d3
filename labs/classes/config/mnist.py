# MNIST with the network of Banerjee et al. 2021 (table 1, and their code for what the table leaves open): 100
# epochs of 540 steps.
# python train.py config/mnist.py --head=taylor
dataset = "mnist"
trunk = "cnn"
tied = False
trunk_args = {
    "layers": """
{Conv[3x3,64] ReLU}x4 MaxPool[2x2,2]
{Conv[3x3,64] ReLU}x3 MaxPool[2x2,2]
{Conv[3x3,64] ReLU}x3 MaxPool[2x2,2]
FC[256] ReLU
"""
}
optimizer = "adam"
beta2 = 0.999
learning_rate = 1e-3
min_lr = 1e-3
warmup_steps = 0
weight_decay = 0.0
grad_clip = 0.0
batch_size = 100
max_steps = 54_000
eval_interval = 540
log_interval = 50
dtype = "float32"
