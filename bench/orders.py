"""What a training step costs in random order beside the same step from left to right.

    python bench/orders.py config/orders.py [--source=DIR ...] [--rounds=30] [--out=bench/orders_known.json]

Whole steps of train.py: batch, forward, backward, optimizer. Both programs take turns; medians count. The
ratio of each pair of neighbours is computed, too, for a machine whose speed changes meanwhile.
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import train
from bench.common import arguments, dtypes, median, turns, write
from config.defaults import TrainConfig

ORDERS = ("left_to_right", "random")


def trainer(config: list[str], order: str, dtype: str, out: str) -> train.Trainer:
    flags = [f"--order={order}", f"--dtype={dtype}", f"--out_dir={out}/{order}"]
    trainer = train.Trainer(TrainConfig.read(["config/baseline.py", *config, *flags]), train.Processes("cpu"))
    trainer.model.train()
    return trainer


def main() -> None:
    args, args.config = arguments(__doc__, rounds=30).parse_known_args()
    results = []
    for dtype in dtypes():
        with tempfile.TemporaryDirectory() as out:
            trainers = {order: trainer(args.config, order, dtype, out) for order in ORDERS}
            programs = {order: t.train_step for order, t in trainers.items()}
            seconds = turns(programs, args.rounds, warmup=5)
            for t in trainers.values():
                t.close()
        ratio = median([b / a for a, b in zip(*seconds.values())])
        step = {order: median(s) for order, s in seconds.items()}
        results.append({"dtype": dtype, "seconds_a_step": step, "ratio": ratio})
        print(f"{dtype}: {step['random']:.4f} s / {step['left_to_right']:.4f} s, ratio {ratio:.3f}")
    write(args, ["config", "rounds"], results)


if __name__ == "__main__":
    main()
