# Does a stronger teacher help? Students of 0.6M parameters are taught by softmax of their own size, of their
# own steps and of 4,000, and by a modern trunk of 2.5M parameters after 1,000 and 5,000 steps. softmax_1800
# takes a tenth longer than a student, the teacher's training not counted. results/README.md has the text and
# the teachers' commands.
config = "sig_gpt"
overlay = "brief"
rows = [
    "softmax --head=softmax --labels=true",
    "softmax_1800 --head=softmax --labels=true --max_steps=1800 --eval_interval=1800",
    "sig_own --teacher={first}",
    "soft_own --teacher={first} --head=soft_targets",
    "sig_own_4000 --teacher=out/once_0.5M_4000/baseline-brief-2/last",
    "soft_own_4000 --teacher=out/once_0.5M_4000/baseline-brief-2/last --head=soft_targets",
    "sig_modern_1000 --teacher={runs}/modern_1000/last",
    "soft_modern_1000 --teacher={runs}/modern_1000/last --head=soft_targets",
    "sig_modern_5000 --teacher={runs}/modern_5000/last",
    "soft_modern_5000 --teacher={runs}/modern_5000/last --head=soft_targets",
]
seeds = [2, 3, 4]
flags = (
    "--learning_rate=2.25e-3 --min_lr=2.25e-4 --readout_lr=8.16e-3 --gain=.484 --n_embd=96 "
    "--eval_windows=300 --eval_interval=1000"
)
runs = "out/teachers"
