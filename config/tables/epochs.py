# A little real text, 81,223 tokens (28 articles), read again and again: where each row is best, and where it
# ends. An epoch is 79.3 steps; four rows go on to 64 epochs, the others stop at 16 of the same schedule. All
# stand at a place that all heads were searched at (results/heads.tune.md). The teacher is softmax of the same
# seed at its best stop: it has read this text alone. Two to seven minutes a row.
#     python data/wikitext103/prepare.py --tokenizer=bpe4096 --lines=9703
#     python data/wikitext103/prepare.py --tokenizer=data/wikitext103/bpe4096/tokenizer.json --lines=1013 \
#         --out=data/little
#     python table.py config/tables/epochs.py --jobs=2
config = "baseline"
overlay = "brief"
rows = [
    "baseline --max_steps=5120 --eval_steps=[80,160,240,320,400,480,640,960,1280,2560,5120]",
    "smooth_gpt_10 --head=label_smoothing --head_args.eps=0.1 --max_steps=5120"
    " --eval_steps=[80,160,240,320,400,480,640,960,1280,2560,5120]",
    "weight_decay --weight_decay=1.0",
    "dropout_20 --dropout=0.2",
    "dropout_40 --dropout=0.4 --max_steps=5120 --eval_steps=[80,160,240,320,400,480,640,960,1280,2560,5120]",
    "gs_softmax_f1 --head=gs_softmax_f1",
    "gs_softmax_f2 --head=gs_softmax_f2",
    "unigram --head=softmax_bias --unigram_bias=True",
    "sig_gpt --head=sigmoid --labels=soft --teacher={runs}/baseline-{overlay}-{seed}/best"
    " --max_steps=5120 --eval_steps=[80,160,240,320,400,480,640,960,1280,2560,5120]",
    "soft_gpt --head=soft_targets --labels=soft --teacher={runs}/baseline-{overlay}-{seed}/best",
]
seeds = [2]
flags = (
    "--data=data/little --max_steps=1280 --lr_decay_steps=5120"
    " --eval_steps=[80,160,240,320,400,480,640,960,1280]"
    " --eval_windows=300 --learning_rate=2.25e-3 --min_lr=2.25e-4 --readout_lr=8.16e-3 --gain=0.484"
)
runs = "out/epochs"
