"""How many rounds the samplers of any order take with a perfect model, on sequences whose law is known.

    python bench/perfect.py [--texts=20] [--length=100] [--out=bench/perfect.json]

The exact conditionals of labs/synthetic stand where a model would. The paper's figure (appendix 0.B) is of
the best of all orders; a sampler has as many as it is given.
"""

import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from bench.common import arguments, write
from data.sequences import SequenceTask
from evaluation.any_order import FREE, Exact
from evaluation.samplers import ANY
from labs.synthetic.tasks import TASKS

SHOWN = [name for name in ANY if name.startswith(("burst", "speculative"))]


def rounds(task: SequenceTask, sampler: str, texts: int) -> list[int]:
    """How many rounds the sampler takes for each text, which it writes from nothing."""
    text = torch.full((texts, task.T), FREE)
    exact = Exact(lambda known: torch.from_numpy(task.log_probs(known.numpy())), text)
    filled = ANY[sampler](exact, generator=torch.Generator().manual_seed(0))
    return [len(set(ranks)) for ranks in filled.rank.tolist()]


def main() -> None:
    p = arguments(__doc__)
    p.add_argument("--texts", type=int, default=20)
    p.add_argument("--length", type=int, default=100)
    args = p.parse_args()
    results: dict[str, dict[str, list[int]]] = {}
    for name, make in TASKS.items():
        task = make(args.length)
        if task.burst_steps() is None:  # nothing to set it beside, and hours
            continue
        results[name] = {sampler: rounds(task, sampler, args.texts) for sampler in SHOWN}
        for sampler, r in results[name].items():
            print(f"{name}, {sampler}: {statistics.fmean(r):.2f} ({min(r)} to {max(r)})", flush=True)
    write(args, ["texts", "length"], results)


if __name__ == "__main__":
    main()
