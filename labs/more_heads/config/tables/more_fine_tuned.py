# The lab's losses for fine-tuning, as in config/tables/fine_tuned.py: each goes on from the softmax row of
# the same seed for a quarter of its steps.
#     python data/wikitext103/prepare.py --tokenizer=bpe4096 --lines=9703
#     python table.py config/tables/more_fine_tuned.py
rows = [
    "baseline --learning_rate=0.00298 --readout_lr=0.011 --gain=0.616 --min_lr=0.000298",
    "power_loss --init_from={first} --gain={gain} --max_steps=250 --learning_rate=1e-3 --min_lr=1e-4"
    " --readout_lr=0",
    "brier --init_from={first} --gain={gain} --max_steps=250 --learning_rate=1e-3 --min_lr=1e-4"
    " --readout_lr=0",
    "spherical --init_from={first} --gain={gain} --max_steps=250 --learning_rate=1e-3 --min_lr=1e-4"
    " --readout_lr=0",
]
overlay = "brief"
seeds = [2, 3, 4, 5, 6]
runs = "out/heads"
