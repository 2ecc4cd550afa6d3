# What the schedule and the batch of config/brief.py leave to gain, on softmax at a gain of .6: all rows read
# as many tokens. `_slower` and `_faster` have all rates times the root of the batch's change.
#     python data/wikitext103/prepare.py --tokenizer=bpe4096 --lines=9703
#     python table.py config/tables/schedule.py --jobs=2
name = "schedule"
config = "baseline"
overlay = "brief"
rows = [
    "recipe",
    "to_zero --min_lr=0",
    "batch_2 --batch_size=2 --max_steps=2000 --warmup_steps=40",
    "batch_2_slower --batch_size=2 --max_steps=2000 --warmup_steps=40"
    " --learning_rate=2.8e-3 --min_lr=2.8e-4 --readout_lr=1.13e-2",
    "batch_8 --batch_size=8 --max_steps=500 --warmup_steps=10",
    "batch_8_faster --batch_size=8 --max_steps=500 --warmup_steps=10"
    " --learning_rate=5.7e-3 --min_lr=5.7e-4 --readout_lr=2.26e-2",
]
seeds = [1, 2, 3]
flags = "--eval_interval=500 --gain=0.6"
measure = "curve"
runs = "out/schedule"
