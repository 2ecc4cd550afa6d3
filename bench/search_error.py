"""How often equal heads are told apart, by the interval that contains the error of their searches.

    python bench/search_error.py [--heads=100] [--tables=500] [--out=bench/search_error.json]

A head is a bowl in the logarithms of the table's settings, with a place of its own and the same lowest NLL;
a training is a point of it and a seed's noise. Each head is searched as table.py does it, at noise of its
own. A table has one head as its first row and 33 others, each trained five times at its best point.

- alarms: by how many times the bootstrap's error of the two searches is counted in the interval
  (evaluate/search.py), the share of rows that are told from the first one at 95% (.05 is due) and at .05/33
  (.0015 is due), and that of tables in which one is after Holm's correction (.05 is due).
- excess: what the chosen point truly lacks to the best one, in nats.
"""

import math
import statistics
import sys
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from bench.timing import arguments, write
from evaluate.search import Point, Space, bootstrap_error, points, propose
from evaluate.statistics import ALPHA, estimate, holm

SPACE: Space = {"learning_rate": [2e-3, 8e-3], "readout_lr": [4e-3, 4e-2], "gain": [0.25, 8]}
OWN: Space = {"kl_weight": [1e-3, 1e-1]}
STEEPNESS = {"learning_rate": 0.06, "readout_lr": 0.03, "gain": 0.12, "kl_weight": 0.05}  # nats, end to end
NOISE = 0.004  # nats, of a seed
LOWEST = 4.88  # nats
COUNTED = (0.0, 1.0, 1.5, 2.0)
ROWS, SEEDS = 33, 5


class Head(NamedTuple):
    trials: list[float]  # the NLL of each
    chosen: float  # that of the chosen point, without noise


def searched(rng: np.random.Generator, own: Space, trials: int, design: int) -> Head:
    space = SPACE | own
    best_at = rng.uniform(0.1, 0.7, len(space))
    steepness = np.array([STEEPNESS[key] for key in space]) * rng.uniform(0.5, 1.5, len(space))

    def nll(point: Point) -> float:
        at = [math.log(point[key] / low) / math.log(high / low) for key, (low, high) in space.items()]
        return LOWEST + float((steepness * (np.array(at) - best_at) ** 2).sum())

    shared = zip(points(SPACE, design), points(own, design, beside=len(SPACE)))
    waiting: list[Point] = [a | b for a, b in shared]
    done: list[dict[str, Any]] = []
    for index in range(trials):
        point = waiting[index] if index < design else propose(space, done)
        done.append({"point": point, "nll": nll(point) + rng.normal(0, NOISE), "vocab_size": 4096})
    chosen = nll(min(done, key=lambda trial: trial["nll"])["point"])
    return Head([trial["nll"] for trial in done], chosen)


def pool(heads: int, first: int, own: Space, trials: int, design: int) -> list[Head]:
    return [searched(np.random.default_rng(first + i), own, trials, design) for i in range(heads)]


def summary(firsts: list[Head], others: list[Head], tables: int) -> dict[str, Any]:
    """Of tables whose first row is one of `firsts`."""
    rng = np.random.default_rng(0)
    told: dict[str, list[tuple[float, float, bool]]] = {str(times): [] for times in COUNTED}
    for _ in range(tables):
        first = firsts[rng.choice(len(firsts))]
        drawn = [others[i] for i in rng.choice(len(others), ROWS, replace=len(others) < ROWS)]
        rows = [head for head in drawn if head is not first]
        base, *nlls = (head.chosen + rng.normal(0, NOISE, SEEDS) for head in (first, *rows))
        for times in COUNTED:
            errors = [(times * bootstrap_error(head.trials), len(head.trials) - 1) for head in (first, *rows)]
            p = [estimate([*(nll - base)], errors[0], error).p for nll, error in zip(nlls, errors[1:])]
            shares = (statistics.fmean(value < level for value in p) for level in (ALPHA, ALPHA / ROWS))
            told[str(times)].append((*shares, bool(holm(dict(enumerate(map(float, p)))))))
    kinds = ("at 95%", f"at .05/{ROWS}", "tables, Holm")
    return {
        "excess": statistics.fmean(head.chosen - LOWEST for head in others),
        "bootstrap_error": statistics.median(bootstrap_error(head.trials) for head in others),
        "alarms": {times: dict(zip(kinds, np.mean(t, 0).tolist())) for times, t in told.items()},
    }


def main() -> None:
    p = arguments(__doc__)
    p.add_argument("--heads", type=int, default=100, help="that are searched, of each kind")
    p.add_argument("--tables", type=int, default=500)
    args = p.parse_args()
    three = pool(args.heads, 3000, {}, 12, 8)
    four = pool(args.heads, 4000, OWN, 12, 8)
    few = pool(args.heads, 5000, {}, 4, 4)
    results = {
        "12 trials, 3 settings": summary(three, three, args.tables),
        "12 trials, 4 settings": summary(four, four, args.tables),
        "12 trials, the first row has 3 settings, the others 4": summary(three, four, args.tables),
        "4 trials, 3 settings": summary(few, few, args.tables),
    }
    for name, r in results.items():
        for times, alarms in r["alarms"].items():
            print(f"{name}, {times}: {', '.join(f'{share:.4f} {what}' for what, share in alarms.items())}")
    write(args, ["heads", "tables"], results)


if __name__ == "__main__":
    main()
