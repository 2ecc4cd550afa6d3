# What learning a text by heart does to a head: 50,000 words of the known language read 64 times, measured on
# that text and on held-out text after 1, 2, 4, ... 64 readings. Each head at its config file's own gain.
# Until commit 163696fb the log had these distances; --measure=truth has those of a checkpoint.
# The teacher of the last rows has read the standard two million words once:
#     python train.py config/baseline.py config/grammar.py --seed=1 --name=baseline-grammar-1 \
#         --out_dir=out/memorise/baseline-grammar-1
#     python table.py config/tables/memorise.py --jobs=2
name = "memorise"
overlay = "memorise"
runs = "out/memorise"
rows = [
    "baseline",
    "gain_4",
    "smooth_gpt_10",
    "sm_softmax",
    "am_softmax",
    "taylor_6",
    "entmax15",
    "perturb_normal",
    "soft_gpt --teacher={runs}/baseline-grammar-1",
    "sig_gpt --teacher={runs}/baseline-grammar-1",
]
seeds = [1, 2, 3]
evaluate = "--prompt_tokens=28 --new_tokens=100"
