"""How often two equal heads are told apart, by the interval that contains the error of their searches.

    python bench/search_error.py [--draws=250] [--out=bench/search_error.json]

A head is a bowl in the logarithms of the table's settings, with a place of its own and the same lowest NLL;
a training is a point of it and a seed's noise. Each of two heads is searched as table.py does it, at noise of
its own, then trained five times at its best point.

- alarms: the share of pairs whose interval for the difference leaves out 0, by how many times the bootstrap's
  error of the two searches is counted in it (measures/search.py). An interval of 95% has .05.
- excess: what the chosen point truly lacks to the best one, in nats.
"""

import math
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from bench.common import arguments, write
from evaluation.statistics import student_interval
from measures.search import Point, Space, bootstrap_error, points, propose

SPACE: Space = {"learning_rate": [2e-3, 8e-3], "readout_lr": [4e-3, 4e-2], "gain": [0.25, 8]}
OWN: Space = {"kl_weight": [1e-3, 1e-1]}
STEEPNESS = {"learning_rate": 0.06, "readout_lr": 0.03, "gain": 0.12, "kl_weight": 0.05}  # nats, end to end
NOISE = 0.004  # nats, of a seed
LOWEST = 4.88  # nats
COUNTED = (0.0, 1.0, 1.5, 2.0)


def searched(rng: np.random.Generator, own: Space, trials: int, design: int) -> dict[str, Any]:
    """One head: the NLL of its trials, of five fresh seeds at its best point, and that point's excess."""
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
    fresh = [chosen + rng.normal(0, NOISE) for _ in range(5)]
    return {"trials": [trial["nll"] for trial in done], "fresh": fresh, "excess": chosen - LOWEST}


def summary(pairs: list[list[dict[str, Any]]]) -> dict[str, Any]:
    told = dict.fromkeys(COUNTED, 0)
    for one, other in pairs:
        differences = [a - b for a, b in zip(one["fresh"], other["fresh"])]
        error = math.hypot(bootstrap_error(one["trials"]), bootstrap_error(other["trials"]))
        for times in COUNTED:
            half = math.hypot(student_interval(differences), times * 1.96 * error)
            told[times] += abs(statistics.fmean(differences)) > half
    heads = [head for pair in pairs for head in pair]
    return {
        "pairs": len(pairs),
        "excess": statistics.fmean(head["excess"] for head in heads),
        "bootstrap_error": statistics.median(bootstrap_error(head["trials"]) for head in heads),
        "alarms": {str(times): count / len(pairs) for times, count in told.items()},
    }


def pairs_of(draws: int, first: int, own: Space, trials: int, design: int) -> list[list[dict[str, Any]]]:
    generators = [np.random.default_rng(first + i) for i in range(draws)]
    return [[searched(rng, own, trials, design) for _ in range(2)] for rng in generators]


def main() -> None:
    p = arguments(__doc__)
    p.add_argument("--draws", type=int, default=250, help="pairs of heads")
    args = p.parse_args()
    results = {
        "12 trials, 3 settings": summary(pairs_of(args.draws, 1000, {}, 12, 8)),
        "12 trials, 4 settings": summary(pairs_of(args.draws, 2000, OWN, 12, 8)),
        "4 trials, 3 settings": summary(pairs_of(args.draws, 3000, {}, 4, 4)),
    }
    for name, r in results.items():
        print(f"{name}: " + ", ".join(f"{alarms:.3f} at {times}" for times, alarms in r["alarms"].items()))
    write(args, ["draws"], results)


if __name__ == "__main__":
    main()
