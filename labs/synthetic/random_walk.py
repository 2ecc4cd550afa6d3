"""The figure of the lazy random walk: what stands at every place, given the value at one.

    python labs/synthetic/random_walk.py out/walk [--out=results/synthetic_walk.walk]

Left the exact density, in the middle what the test split has, right what the model says in one pass, both
forwards and backwards in time. Source: Pannatier et al. 2024, arXiv 2404.09562, appendix 0.A and fig. 7.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from runtime.door import Program


@dataclass
class WalkConfig:
    # fmt: off
    run: str                        # the out folder of a run on --source=walk
    place: int = 50                 # the one that is known
    value: int = 120                # of the walk there
    data: str = ""                  # the prepared data folder; empty: the one of the run
    out: str = "results/synthetic_walk.walk"    # writes OUT.jsonl and OUT.png
    # fmt: on


program = Program(__name__, __doc__, WalkConfig, "matplotlib")

import json

import numpy as np
import torch

from data.prepared import found_path
from data.tokens import open_tokens
from evaluation import figures
from evaluation.any_order import FREE
from evaluation.orders import Asker
from labs.climbs.rest import density
from labs.synthetic.prepare import corpus
from labs.synthetic.tasks import Walk
from measures.measure import NamedRun
from measures.store import Store
from runtime.checkpoint import load_model
from runtime.configurator import cli
from runtime.errors import UserError


def opened(c: WalkConfig) -> tuple[NamedRun, Walk, np.ndarray, Asker, np.ndarray]:
    """The run, the walk, the test split's sequences (n, T), the model, what is known of a sequence (T,)."""
    model, ckpt = load_model(c.run, "last")
    if ckpt.config["dataset"] != "synthetic":
        raise UserError(f"{c.run} was not trained on the walk: give a run of --source=walk")
    data = Path(c.data) if c.data else found_path(ckpt.config["data"], Path(c.run))
    tokens = open_tokens(data / "test.bin")
    task = corpus.task(str(tokens.info["source"]))
    if not isinstance(task, Walk):
        raise UserError(f"{c.run} was not trained on the walk: give a run of --source=walk")
    if not 0 <= c.place < task.T:
        raise UserError(f"place = {c.place}: walks have the places 0 to {task.T - 1}")
    text = np.full(task.T, FREE)
    text[c.place] = c.value - task.low
    rows = tokens.ids[: len(tokens.ids) // task.T * task.T].reshape(-1, task.T).astype(int)
    if not (rows[:, c.place] == text[c.place]).any():
        raise UserError(f"value = {c.value}: no walk of the test split is there at place {c.place}")
    who = Asker(model, model.head.draws(1, 0), "cpu", "float32")
    return NamedRun(ckpt.config["name"], Path(c.run), ckpt), task, rows, who, text


@program
def main(c: WalkConfig) -> int:
    store = Store.beside(c.out)
    entry, task, rows, who, text = opened(c)
    exact = np.exp(task.log_probs(text[None])[0])
    passing = rows[rows[:, c.place] == text[c.place]]
    seen = np.stack([np.bincount(column, minlength=task.V) for column in passing.T]) / len(passing)
    said = density(who, torch.from_numpy(text)[None])[0].numpy()
    free = text == FREE
    kl = np.where(exact > 0, exact * np.log(np.maximum(exact, 1e-300) / np.maximum(said, 1e-300)), 0).sum(1)
    before, after = (float(kl[part & free].mean()) for part in side(task.T, c.place))
    plt = figures.pyplot()
    fig, axes = plt.subplots(1, 3, figsize=(9, 3), sharey=True)
    for ax, p, title in zip(
        axes, (exact, seen, said), ("exact", f"test split ({len(passing)} walks)", "model")
    ):
        ax.imshow(np.sqrt(p.T), origin="lower", aspect="auto", cmap="Greys", vmin=0, vmax=0.6)
        ax.set(title=title, xlabel="place")
        ticks = np.arange(60, 200, 20) - task.low
        ax.set_yticks(ticks, [str(t + task.low) for t in ticks])
        ax.set_ylim(40 - task.low, 200 - task.low)
    axes[0].set_ylabel("value")
    figures.write(fig, Path(c.out))
    found = {"kl_before": before, "kl_after": after, "walks": len(passing)}
    row = {"measure": "walk", "definition": 1, "settings": {"place": c.place, "value": c.value}}
    store.put([{**row, "name": entry.name, **entry.facts(), **entry.identity(), **found}])
    print(json.dumps(found))
    return 0


def side(T: int, place: int) -> tuple[np.ndarray, np.ndarray]:
    """The places before and after one."""
    at = np.arange(T)
    return at < place, at > place


if __name__ == "__main__":
    cli(main)()
