# The same rows on the known language with AdamW, against its exact two-sided truth, with what each sampler
# writes. Each at its own best learning rate of four: at one rate for all, masked diffusion was still at the
# frequencies of words after 4,000 steps (one seed). On the recipe of config/orders.py: orders_known.py.
#     python table.py config/tables/orders.py config/tables/orders_grammar.py --search --jobs=2
#     python table.py config/tables/orders.py config/tables/orders_grammar.py --jobs=2
name = "orders_grammar"
rows = [
    "baseline --optimizer=adamw --readout_lr=0 --warmup_steps=100 --beta2=.95"
    " --max_steps=4000 --eval_interval=1000",
    "sigma_gpt --optimizer=adamw --readout_lr=0 --warmup_steps=100 --beta2=.95"
    " --max_steps=4000 --eval_interval=1000",
    "sigma_gpt_random --optimizer=adamw --readout_lr=0 --warmup_steps=100 --beta2=.95"
    " --max_steps=4000 --eval_interval=1000",
    "masked_diffusion --optimizer=adamw --readout_lr=0 --warmup_steps=100 --beta2=.95"
    " --max_steps=4000 --eval_interval=1000",
]
overlay = "orders"
tuned = True
space = {"learning_rate": [1e-3, 8e-3]}
trials = 4
design = 4
seeds = [2, 3, 4]
runs = "out/orders_grammar"
evaluate = "--samplers --split=test"
