# The GS-Softmax document's ablations on MNIST: temperature of sampling (table 3), temperature and label
# smoothing in training (tables 7 and 8). All rows have the learning rate that images.tune chose for softmax,
# F1 and perturb-max, and but for the temperatures a gain of 1. DIR: the images' files.
#     python train.py config/mnist_brief.py --source=DIR --out_dir=out/mnist_brief
#     python table.py config/tables/images_ablation.py --flags="--source='mnist vq in=DIR'"
rows = [
    "baseline --learning_rate=4.5e-3 --min_lr=4.5e-4",
    "temperature_0.8 --learning_rate=4.5e-3 --min_lr=4.5e-4",
    "temperature_1.2 --learning_rate=4.5e-3 --min_lr=4.5e-4",
    "temperature --learning_rate=4.5e-3 --min_lr=4.5e-4",
    "smooth_gpt_10 --learning_rate=4.5e-3 --min_lr=4.5e-4",
    "gs_softmax_f1 --learning_rate=4.5e-3 --min_lr=4.5e-4",
]
overlay = "mnist_tokens"
seeds = [2, 3, 4]
runs = "out/images_ablation"
measure = "images"
evaluate = "--classifier=out/mnist_brief --cfg=[2] --temperatures=[0.8,0.9,0.98,1,1.02,1.1]"
