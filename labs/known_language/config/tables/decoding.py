# What a temperature and the cuts of a distribution do to its distance from the truth: trainings of a minute
# on a known language, each row at its own learning rate and gain. Some 90 minutes of a core.
#     python labs/known_language/grammar/prepare.py
#     python table.py config/tables/decoding.py --search
#     python table.py config/tables/decoding.py
name = "decoding"
rows = [
    "baseline",
    "entmax15",
    "sparsemax",
    "smooth_gpt",
    "gs_softmax_f1",
    "sig_gpt --teacher={first}",
    "perturb_normal",
]
overlay = "grammar_muon"
flags = "--eval_interval=1000"
space = {"learning_rate": [2e-3, 8e-3], "gain": [0.5, 8]}
trials = 4
design = 4
tuned = True
seeds = [2, 3, 4, 5, 6]
measure = "decoding"
evaluate = "--windows=8"
runs = "out/decoding"
