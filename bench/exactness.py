"""Whether each sampler of any order keeps the law of its model, and in how many rounds it writes.

    python bench/exactness.py [--texts=20000] [--seeds=7] [--out=bench/exactness.json]

Twenty minutes of a core.

The model is perfect: the exact conditionals of labs/synthetic stand where one would. What a sampler then
misses is its own error, and no training's.

- total_variation: of so many short texts from the exact law, a number of each seed. "the law itself": of as
  many draws of the truth, which is the noise of the number.
- evaluations: of the model, for such a text.
- rounds: of each of 20 long texts. The figure of sigma-GPTs (arXiv 2404.09562, appendix 0.B) is of the best
  of all orders; a sampler has as many as it is given.
"""

import statistics
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

from bench.common import arguments, write
from data.sequences import SequenceTask
from evaluation.any_order import FREE, Exact
from evaluation.filling import Filled
from evaluation.samplers import ANY, MASKED
from labs.synthetic.tasks import TASKS, Permutation, Product, Step, Walk

SHORT = {"product": Product(5, 0.3), "step": Step(8, 3), "permutation": Permutation(5), "walk": Walk(4)}
SAMPLERS = ANY | MASKED
LONG = [name for name in ANY if name.startswith(("burst", "speculative"))]


def written(task: SequenceTask, sampler: Callable[..., Filled], texts: int, seed: int = 0) -> Filled:
    """So many texts, from nothing."""

    def log_probs(known: torch.Tensor) -> torch.Tensor:
        # tokens that were drawn apart may contradict each other, and then the law says nothing of the rest
        weights = torch.from_numpy(task.weights(known.numpy()))
        possible = (weights.sum(2) > 0).all(1)[:, None, None]
        weights = torch.where(possible, weights, 1.0)
        return (weights / weights.sum(2, keepdim=True)).log()

    exact = Exact(log_probs, torch.full((texts, task.T), FREE))
    return sampler(exact, generator=torch.Generator().manual_seed(seed))


def total_variation(task: SequenceTask, texts: np.ndarray) -> float:
    """Between the frequencies of `texts` (n, T) and the law: half the sum of |difference| over all texts."""
    times = Counter(map(tuple, texts.tolist()))
    p = np.exp(task.log_prob(np.array(list(times))))
    share = np.array(list(times.values())) / len(texts)
    return float((np.abs(share - p).sum() + 1 - p.sum()) / 2)  # what was never written has the rest of p


def short(task: SequenceTask, texts: int, seeds: int) -> dict[str, dict[str, Any]]:
    drawn = [task.sample(texts, np.random.default_rng(seed)) for seed in range(seeds)]
    out: dict[str, dict[str, Any]] = {
        "the law itself": {"total_variation": [total_variation(task, truth) for truth in drawn]}
    }
    for name, sampler in SAMPLERS.items():
        filled = [written(task, sampler, texts, seed) for seed in range(seeds)]
        out[name] = {
            "total_variation": [total_variation(task, f.text.numpy()) for f in filled],
            "evaluations": statistics.fmean(filled[0].passes_each),
        }
    return out


def main() -> None:
    p = arguments(__doc__)
    p.add_argument("--texts", type=int, default=20_000)
    p.add_argument("--seeds", type=int, default=7, help="of the short texts: that many draws of them")
    p.add_argument("--length", type=int, default=100, help="of the long texts")
    args = p.parse_args()
    results: dict[str, dict[str, Any]] = {"short": {}, "rounds": {}}
    for name, task in SHORT.items():
        results["short"][name] = short(task, args.texts, args.seeds)
        for sampler, r in results["short"][name].items():
            print(f"{name}, {sampler}: {statistics.fmean(r['total_variation']):.3f}", flush=True)
    for name, make in TASKS.items():
        task = make(args.length)
        if task.burst_steps() is None:  # nothing to set it beside, and hours
            continue
        rounds = {s: [len(set(r)) for r in written(task, ANY[s], 20).rank.tolist()] for s in LONG}
        results["rounds"][name] = rounds
        for sampler, r in rounds.items():
            print(f"{name}, {sampler}: {statistics.fmean(r):.2f} rounds ({min(r)} to {max(r)})", flush=True)
    write(args, ["texts", "seeds", "length"], results)


if __name__ == "__main__":
    main()
