# The heads of the GS-Softmax document on MNIST: what they draw at guidance 1 to 4. DIR: the images' files.
#     python train.py config/mnist_brief.py --source=DIR --out_dir=out/mnist_brief
#     python table.py config/tables/images.py --flags="--source='mnist vq in=DIR'" --search
#     python table.py config/tables/images.py --flags="--source='mnist vq in=DIR'"
rows = ["baseline", "gs_softmax_f1", "gs_softmax_f2", "perturb_normal"]
overlay = "mnist_tokens"
tuned = True
trials = 4
design = 4
seeds = [2, 3, 4]
runs = "out/images"
measure = "images"
evaluate = "--classifier=out/mnist_brief"
