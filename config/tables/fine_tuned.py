# Losses for fine-tuning: each goes on from the softmax row of the same seed, at its best point of heads.py,
# for a quarter of its steps. Nothing is searched. stop_gradient on softmax is cross-entropy: it says what the
# additional steps alone bring. Half an hour of a core.
#     python data/wikitext103/prepare.py --tokenizer=bpe4096 --lines=9703
#     python table.py config/tables/fine_tuned.py
rows = [
    "baseline --learning_rate=0.00298 --readout_lr=0.011 --gain=0.616 --min_lr=0.000298",
    "stop_gradient --init_from={first} --gain={gain} --max_steps=250 --learning_rate=1e-3 --min_lr=1e-4"
    " --readout_lr=0",
    "smooth_accuracy --init_from={first} --gain={gain} --max_steps=250 --learning_rate=1e-3 --min_lr=1e-4"
    " --readout_lr=0",
    "sparse_softmax_k --init_from={first} --gain={gain} --max_steps=250 --learning_rate=1e-3 --min_lr=1e-4"
    " --readout_lr=0",
    "sparse_softmax_p --init_from={first} --gain={gain} --max_steps=250 --learning_rate=1e-3 --min_lr=1e-4"
    " --readout_lr=0",
]
overlay = "brief"
seeds = [2, 3, 4, 5, 6]
runs = "out/heads"
