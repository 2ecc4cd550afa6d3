# CIFAR-100 with the network of Banerjee et al. 2021, which is that of Clevert et al. 2016, as their code has
# it: padding, strides of 2, and one activation a block; 100 epochs of 450 steps. Their L2 of .0005 is a
# weight decay of .001; of the first layer it is twenty times that there, and none of the last.
# python train.py config/cifar100.py --head=taylor
dataset = "cifar100"
trunk = "cnn"
tied = False
trunk_args = {
    "layers": """
Pad[4] Conv[3x3,384] ELU MaxPool[2x2,2,same] DO
Conv[1x1,384] Conv[2x2,384] {Conv[2x2,640]}x2 ELU MaxPool[2x2,2,same] DO
Conv[3x3,640] {Conv[2x2,768]}x3 ELU MaxPool[2x2,2,same] DO
Conv[1x1,768] {Conv[2x2,896]}x2 ELU MaxPool[2x2,2,same] DO
Conv[3x3,896] {Conv[2x2,1024]}x2 ELU MaxPool[2x2,2,same] DO
Conv[1x1,1024] Conv[2x2,1152] ELU MaxPool[2x2,2,same] DO
Conv[1x1,1152] ELU MaxPool[2x2,2,same] DO
"""
}
optimizer = "sgd"
learning_rate = 0.01
min_lr = 0.01
warmup_steps = 0
weight_decay = 1e-3
grad_clip = 0.0
batch_size = 100
max_steps = 45_000
eval_interval = 450
log_interval = 50
dtype = "float32"
