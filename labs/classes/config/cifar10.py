# CIFAR-10 with the network of Banerjee et al. 2021, which is Brownlee's: 100 epochs of 450 steps. Their table
# says that MaxPool has stride 1; their code has Keras' default, 2, as Brownlee has.
# python train.py config/cifar10.py --head=taylor
dataset = "cifar10"
trunk = "cnn"
tied = False
trunk_args = {
    "he": True,
    "layers": """
{Conv[3x3,32] ReLU BN}x2 MaxPool[2x2,2] Dropout[0.2]
{Conv[3x3,64] ReLU BN}x2 MaxPool[2x2,2] Dropout[0.3]
{Conv[3x3,128] ReLU BN}x2 MaxPool[2x2,2] Dropout[0.4]
FC[128] ReLU BN Dropout[0.5]
""",
}
optimizer = "sgd"
learning_rate = 0.01
min_lr = 0.01
warmup_steps = 0
weight_decay = 0.0
grad_clip = 0.0
batch_size = 100
max_steps = 45_000
eval_interval = 450
log_interval = 50
dtype = "float32"
