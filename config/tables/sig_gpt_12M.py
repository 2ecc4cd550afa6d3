# What is Sig-GPT's gain made of: its labels, its sigmoids, or the output bias that they bring? Model, text
# and steps of heads_12M.py. All rows train at one point, which that table's search chose for softmax and for
# Sig-GPT. DIR is that of heads_novels.py. Minutes on a GPU.
#     python data/text/prepare.py --source=DIR --tokenizer=bpe4096 --out=data/text/bpe4096
#     python table.py config/tables/sig_gpt_12M.py
rows = [
    "baseline",
    "softmax_bias",
    "unigram",
    "sigmoid",
    "soft_gpt --teacher={first}",
    "sig_gpt --teacher={first}",
]
overlay = "brief"
flags = (
    "--dataset=text --n_layer=6 --n_head=6 --n_embd=384 --batch_size=16 --max_steps=1400 "
    "--eval_interval=1400 --compile=False --learning_rate=5.92e-3 --min_lr=5.92e-4 "
    "--readout_lr=5.46e-3 --gain=0.45"
)
seeds = [2, 3, 4]
jobs = 3
runs = "out/sig_gpt_12M"
