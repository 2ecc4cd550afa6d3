# Which head recovers the truth: the rows of heads.py on the known language.
#     python table.py config/tables/heads.py config/tables/grammar.py --search
#     python table.py config/tables/heads.py config/tables/grammar.py
name = "grammar"
overlay = "grammar"
evaluate = "--prompt_tokens=28 --new_tokens=100"
runs = "out/grammar"
space = {"learning_rate": [2e-3, 12e-3], "gain": [0.7, 8]}
own_space = {}
trials = 8
design = 4
