# What a temperature and the cuts of a distribution do to its distance from the truth: short trainings on the
# recipe on a small known language, all rows at one gain. 15 s of a core each.
#     python table.py config/tables/decoding.py
# Longer, and each head at its own gain: --flags="--max_steps=1000" --search, and then --tuned=True
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
flags = (
    "--source='train=500000 validation=20000 test=20000 nouns=100 verbs=40 adjectives=50 adverbs=20 themes=16"
    "' --batch_size=4 --max_steps=400 --gain=3.4 --eval_interval=400"
)
seeds = [1, 2, 3]
measure = "decoding"
evaluate = "--windows=8"
runs = "out/decoding"
