# What the recipe of config/brief.py is made of, on softmax at a gain of .6. `recipe` is all of it; the rows
# that follow lack or change one part. `before` is the recipe of config/brief_adamw.py; the last rows add one
# part to it.
#     python data/wikitext103/prepare.py --tokenizer=bpe4096 --lines=9703
#     python table.py config/tables/recipe.py --jobs=2
#     python table.py config/tables/recipe.py --name=recipe_250 --runs=out/recipe_250 \
#         --flags="--eval_interval=250 --gain=0.6 --max_steps=250" --seeds=1 --jobs=2
name = "recipe"
config = "baseline"
overlay = "brief"
rows = [
    "recipe",
    "before --optimizer=adamw --learning_rate=2e-3 --min_lr=2e-4 --readout_lr=0"
    " --warmup_steps=60 --beta2=.95 --gain=1",
    "adamw --optimizer=adamw --learning_rate=2e-3 --min_lr=2e-4 --readout_lr=8e-3",
    "one_rate --readout_lr=0",
    "gain_1 --gain=1",
    "warmup_60 --warmup_steps=60",
    "beta2_95 --beta2=.95",
    "untied --tied=False",
    "before_muon --optimizer=muon --learning_rate=4e-3 --min_lr=4e-4 --readout_lr=0"
    " --warmup_steps=60 --beta2=.95 --gain=1",
    "before_readout --optimizer=adamw --learning_rate=2e-3 --min_lr=2e-4 --readout_lr=8e-3"
    " --warmup_steps=60 --beta2=.95 --gain=1",
    "before_warmup_20 --optimizer=adamw --learning_rate=2e-3 --min_lr=2e-4 --readout_lr=0"
    " --warmup_steps=20 --beta2=.95 --gain=1",
    "before_beta2_99 --optimizer=adamw --learning_rate=2e-3 --min_lr=2e-4 --readout_lr=0"
    " --warmup_steps=60 --beta2=.99 --gain=1",
    "before_gain_0.6 --optimizer=adamw --learning_rate=2e-3 --min_lr=2e-4 --readout_lr=0"
    " --warmup_steps=60 --beta2=.95 --gain=.6",
]
seeds = [1, 2, 3]
flags = "--eval_interval=1000 --gain=0.6"
measure = "curve"
runs = "out/recipe"
