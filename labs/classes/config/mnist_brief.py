# MNIST with a hundredth of the arithmetic of the paper's network, and five epochs: minutes on a core.
# python train.py config/mnist_brief.py --head=taylor
dataset = "mnist"
trunk = "cnn"
tied = False
trunk_args = {"layers": "Conv[3x3,16] ReLU MaxPool[2x2,2] Conv[3x3,32] ReLU MaxPool[2x2,2] FC[128] ReLU"}
optimizer = "adam"
beta2 = 0.999
learning_rate = 1e-3
min_lr = 1e-3
warmup_steps = 0
weight_decay = 0.0
grad_clip = 0.0
batch_size = 100
max_steps = 2700
eval_interval = 540
log_interval = 50
dtype = "float32"
