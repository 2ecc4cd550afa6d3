# What labels.py leaves open, at its place and with its teacher: drawn proposals beside the likeliest, the
# share of positions, the perplexity threshold (half, once and twice a teacher's perplexity), a positive
# weight of 1,000. Two hours of a core.
#     python table.py config/tables/label_settings.py --jobs=2
config = "sig_gpt"
overlay = "brief"
rows = [
    "softmax --head=softmax --labels=true --learning_rate=2.98e-3 --min_lr=2.98e-4 --readout_lr=1.1e-2"
    " --gain=0.616",
    "top_50 --teacher={first}",
    "top_12 --teacher={first} --candidates=12",
    "drawn_50 --teacher={first} --proposals=drawn",
    "drawn_12 --teacher={first} --proposals=drawn --candidates=12",
    "soft_top_50 --teacher={first} --head=soft_targets",
    "soft_drawn_50 --teacher={first} --head=soft_targets --proposals=drawn",
    "soft_drawn_12 --teacher={first} --head=soft_targets --proposals=drawn --candidates=12",
    "positions_12 --teacher={first} --positions=0.125",
    "positions_100 --teacher={first} --positions=1.0",
    "threshold_64 --teacher={first} --ppl_threshold=64",
    "threshold_128 --teacher={first} --ppl_threshold=128",
    "threshold_256 --teacher={first} --ppl_threshold=256",
    "hard_threshold_128 --teacher={first} --labels=hard --ppl_threshold=128",
    "weight_1000 --teacher={first} --head_args.pos_weight=1000",
    "hard_weight_1000 --teacher={first} --labels=hard --head_args.pos_weight=1000",
]
seeds = [2, 3, 4]
flags = "--learning_rate=4.17e-3 --min_lr=4.17e-4 --readout_lr=1.32e-2 --gain=0.25"
runs = "out/label_settings"
