# Banerjee et al. 2021, tables 2 and 3, on MNIST, with five seeds: for a GPU; mnist_brief.py is for a CPU.
# Taylor-inf has the sign of heads/taylor.py; as published, without it, it does not train.
#     python table.py config/tables/mnist.py --flags=--source=DIR
#     python table.py config/tables/mnist.py --overlay=cifar10 --name=cifar10 --flags=--source=DIR
rows = [
    "softmax",
    "taylor_2 --head=taylor --head_args.n=2",
    "taylor_4 --head=taylor --head_args.n=4",
    "taylor_6 --head=taylor --head_args.n=6",
    "taylor_8 --head=taylor --head_args.n=8",
    "taylor_10 --head=taylor --head_args.n=10",
    "taylor_inf_2 --head=taylor_inf --head_args.n=2",
    "taylor_inf_4 --head=taylor_inf --head_args.n=4",
    "taylor_inf_6 --head=taylor_inf --head_args.n=6",
    "taylor_inf_8 --head=taylor_inf --head_args.n=8",
    "taylor_inf_10 --head=taylor_inf --head_args.n=10",
    "taylor_inf_2_published --head=taylor_inf --head_args.n=2 --head_args.published=True",
    # m = 0 is softmax
    "sm_softmax_0.1 --head=sm_softmax --head_args.m=0.1",
    "sm_softmax_0.2 --head=sm_softmax --head_args.m=0.2",
    "sm_softmax_0.3 --head=sm_softmax --head_args.m=0.3",
    "sm_softmax_0.4 --head=sm_softmax --head_args.m=0.4",
    "sm_softmax_0.5 --head=sm_softmax --head_args.m=0.5",
    "sm_softmax_0.6 --head=sm_softmax --head_args.m=0.6",
    "sm_softmax_0.7 --head=sm_softmax --head_args.m=0.7",
    "sm_softmax_0.8 --head=sm_softmax --head_args.m=0.8",
    "sm_softmax_0.9 --head=sm_softmax --head_args.m=0.9",
    "sm_taylor_2 --head=sm_taylor --head_args.n=2 --head_args.m=0.6",
    "sm_taylor_4 --head=sm_taylor --head_args.n=4 --head_args.m=0.6",
    "sm_taylor_6 --head=sm_taylor --head_args.n=6 --head_args.m=0.6",
    "sm_taylor_8 --head=sm_taylor --head_args.n=8 --head_args.m=0.6",
    "sm_taylor_10 --head=sm_taylor --head_args.n=10 --head_args.m=0.6",
    # the document has no other margins of SM-Taylor
    "sm_taylor_2_m0.2 --head=sm_taylor --head_args.n=2 --head_args.m=0.2",
    "sm_taylor_2_m0.4 --head=sm_taylor --head_args.n=2 --head_args.m=0.4",
    "sm_taylor_2_m0.8 --head=sm_taylor --head_args.n=2 --head_args.m=0.8",
]
config = "baseline"
overlay = "mnist"
measure = "classes"
space = {"gain": [0.5, 8]}
seeds = [2, 3, 4, 5, 6]
runs = "out/classify"
