# Overlay: codes of a larger tokenizer, one GPU: GPT-B of LlamaGen and of the GS-Softmax document (section
# 4.1), 256 codes of 16,384 for an image of 256 x 256, 1,000 classes. DIR: see image_tokens/files.py.
# python train.py config/gs_softmax_f1.py config/image_tokens_gpu.py \
#     --source="files codes=16384 classes=1000 in=DIR"
dataset = "image_tokens"
tokenizer = "words"
block_size = 257
n_layer = 12
n_head = 12
n_embd = 768
dropout = 0.1
batch_size = 256
micro_batch = 64  # fits 24 GiB; 0 where there is more
max_steps = 1_500_000  # 300 epochs of 1.28 million images
learning_rate = 1e-4
min_lr = 1e-4  # constant
warmup_steps = 0
weight_decay = 0.05
beta1 = 0.9
beta2 = 0.95
grad_clip = 1.0
eval_interval = 5000
log_interval = 50
