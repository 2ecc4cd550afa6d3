"""What a training step costs in random order beside the same step from left to right.

    python bench/orders.py config/brief.py [--source=DIR ...] [--rounds=30] [--out=bench/orders.json]

Whole steps of train.py: batch, forward, backward, optimizer. Both programs take turns; medians count. The
ratio of each pair of neighbours is computed, too, for a machine whose speed changes meanwhile.
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import train
from bench.common import dtypes, median, turns, write
from config.defaults import TrainConfig


def trainer(config: list[str], order: str, dtype: str, out: str) -> train.Trainer:
    flags = [
        "config/baseline.py",
        *config,
        f"--order={order}",
        f"--dtype={dtype}",
        f"--out_dir={out}/{order}",
    ]
    made = train.Trainer(TrainConfig.read(flags), train.Processes("cpu"))
    made.model.train()
    return made


def main(argv: list[str]) -> None:
    own = {"rounds": "30", "out": ""}
    rest = []
    for argument in argv:
        key, _, value = argument.removeprefix("--").partition("=")
        own.update({key: value}) if key in own else rest.append(argument)
    found = []
    for dtype in dtypes():
        with tempfile.TemporaryDirectory() as out:
            made = {order: trainer(rest, order, dtype, out) for order in ("left_to_right", "random")}
            programs = {order: t.train_step for order, t in made.items()}
            seconds = turns(programs, int(own["rounds"]), warmup=5)
            for t in made.values():
                t.close()
        pairs = [b / a for a, b in zip(seconds["left_to_right"], seconds["random"])]
        step = {order: median(s) for order, s in seconds.items()}
        found.append({"dtype": dtype, "seconds_a_step": step, "ratio": median(pairs)})
        print(f"{dtype}: {step['random']:.4f} s / {step['left_to_right']:.4f} s, ratio {median(pairs):.3f}")
    write(Path(own["out"]) if own["out"] else None, {"config": rest, "rounds": int(own["rounds"])}, found)


if __name__ == "__main__":
    main(sys.argv[1:])
