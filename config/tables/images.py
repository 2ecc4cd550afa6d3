# The heads of the GS-Softmax document on MNIST: what they draw at guidance 1 to 4. DIR: the images' files.
#     python classify.py config/mnist_brief.py --source=DIR --out_dir=out/mnist_brief
#     python table.py config/tables/images.py --flags="--source='mnist vq in=DIR'"
# Each row at its own best gain and learning rate:
#     python tune.py config/tables/images.py --flags="--source='mnist vq in=DIR'"
#     python table.py config/tables/images.py --flags="--source='mnist vq in=DIR'" --name=images_tuned \
#         --tuned --tuning=results/images.tune.json
rows = ["baseline", "gs_softmax_f1", "gs_softmax_f2", "perturb_normal"]
overlay = "mnist_tokens"
seeds = [1, 2, 3]
tune_seed = 9
runs = "out/images"
evaluator = "images"
evaluate = "--classifier=out/mnist_brief"
