# The price of the labels: Sig-GPT at its best point of results/heads, with the true token alone, with a
# teacher's soft labels, and with 1 to 50 hard ones; hard_50_alone has no true token at these positions, as
# published. Softmax at its own best point is the teacher. An hour of a core.
#     python data/wikitext103/prepare.py --tokenizer=bpe4096 --lines=9703
#     python table.py config/tables/labels.py --jobs=2
config = "sig_gpt"
overlay = "brief"
rows = [
    "softmax --head=softmax --labels=true --learning_rate=2.98e-3 --min_lr=2.98e-4 --readout_lr=1.1e-2"
    " --gain=0.616",
    "true --labels=true",
    "soft --teacher={first}",
    "hard_1 --teacher={first} --labels=hard --candidates=1",
    "hard_5 --teacher={first} --labels=hard --candidates=5",
    "hard_20 --teacher={first} --labels=hard --candidates=20",
    "hard_50 --teacher={first} --labels=hard --candidates=50",
    "hard_50_alone --teacher={first} --labels=hard --candidates=50 --keep_true=False",
]
seeds = [2, 3, 4]
flags = "--learning_rate=4.17e-3 --min_lr=4.17e-4 --readout_lr=1.32e-2 --gain=0.25"
runs = "out/labels"
