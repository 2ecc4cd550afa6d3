# The mazes of mazes_small.py on the recipe of config/mazes.py (Muon), a quarter of the steps, one seed.
#     python table.py config/tables/mazes.py config/tables/mazes_muon.py
name = "mazes_muon"
rows = ["sigma_gpt"]
seeds = [1]
flags = (
    "--source='height=7 width=7 walls=3' --block_size=98 --max_steps=1250 --eval_interval=250"
    " --learning_rate=1.2e-2 --min_lr=1.2e-3 --warmup_steps=20 --beta2=.99"
)
runs = "out/mazes_muon"
