# Mazes of 7 x 7 cells with 3 walls, 5,000 steps of AdamW: ten minutes a run on a core.
#     python table.py config/tables/mazes.py config/tables/mazes_small.py --jobs=2
name = "mazes_small"
flags = "--source='height=7 width=7 walls=3' --block_size=98 --max_steps=5000 --optimizer=adamw"
runs = "out/mazes_small"
