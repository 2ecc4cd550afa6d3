# The main table: all rows of heads.py on the recipe of config/brief.py, each with its own learning rates and
# gain. Some 25 core-hours; what is done is kept.
#     python data/wikitext103/prepare.py --tokenizer=bpe4096 --lines=9703
#     python table.py config/tables/heads.py config/tables/main.py --search --jobs=2
#     python table.py config/tables/heads.py config/tables/main.py --jobs=2
name = "main"
overlay = "brief"
runs = "out/main"
space = {"learning_rate": [2e-3, 8e-3], "readout_lr": [4e-3, 4e-2], "gain": [0.25, 8]}
trials = 16
design = 8
