# What a temperature and the cuts of a distribution do to its distance from the truth, on models of the known
# language, each tuned on the recipe.
#     python data/grammar/prepare.py
#     python table.py config/tables/heads.py config/tables/decoding.py --search --jobs=2
#     python table.py config/tables/heads.py config/tables/decoding.py --jobs=2
name = "decoding"
rows = ["baseline", "smooth_gpt", "entmax15", "sparsemax", "sig_gpt --teacher={first}"]
overlay = "grammar_muon"
runs = "out/decoding"
own_space = {}
trials = 8
design = 4
