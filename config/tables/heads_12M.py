# Does the order of the heads last in a larger model? Four rows and the text of heads_novels.py, and a model
# of 12.3M parameters, seven times as many, over 1,400 steps of four times as many windows. Minutes on a GPU.
# DIR is that of heads_novels.py: give all flags again by --flags, and --results=out/again.
#     python table.py config/tables/heads_12M.py --search --jobs=14
#     python table.py config/tables/heads_12M.py --jobs=14
rows = ["baseline", "gs_softmax_f1", "bayes_gpt --kl_weight=1.4e-3", "sig_gpt --teacher={first}"]
overlay = "brief"
flags = (
    "--dataset=text --source=DIR --n_layer=6 --n_head=6 --n_embd=384 --batch_size=16 --max_steps=1400 "
    "--eval_interval=1400 --compile=False"
)
seeds = [2, 3, 4]
tuned = True
runs = "out/heads_12M"
space = {"learning_rate": [2e-3, 8e-3], "readout_lr": [4e-3, 2.4e-2], "gain": [0.25, 2]}
trials = 4
design = 4
