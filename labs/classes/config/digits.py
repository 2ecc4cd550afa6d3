# scikit-learn's digits, 20 epochs of 13 steps: seconds.
# python train.py config/digits.py --head=sm_taylor --head_args.n=4 --gain=2
dataset = "digits"
trunk = "cnn"
tied = False
trunk_args = {"layers": "Conv[3x3,32] ReLU MaxPool[2x2,2] FC[64] ReLU"}
optimizer = "adam"
beta2 = 0.999
learning_rate = 1e-3
min_lr = 1e-3
warmup_steps = 0
weight_decay = 0.0
grad_clip = 0.0
batch_size = 100
max_steps = 260
eval_interval = 13
log_interval = 50
dtype = "float32"
