"""The figure of the lazy random walk: what stands at every place, given the value at one.

    python docs/random_walk.py out/walk [--place=50] [--value=120] [--data=FOLDER]
                               [--out=results/synthetic_walk.walk]

Left the exact density, in the middle what the test split has, right what the model says in one pass, both
forwards and backwards in time. Source: Pannatier et al. 2024, arXiv 2404.09562, appendix 0.A and fig. 7.
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

from data.prepared import found_path
from data.synthetic.prepare import task_of
from data.synthetic.tasks import Walk
from data.tokens import open_tokens
from evaluation import figures
from evaluation.any_order import FREE
from evaluation.orders import Asker
from evaluation.rest import density
from runtime.checkpoint import load_model
from runtime.configurator import cli
from runtime.errors import UserError
from runtime.files import write_json


def learned(run: str, text: np.ndarray) -> np.ndarray:
    """The model's p (T, V) at each place of `text` (T,); at the known one all of it on its token."""
    model, _ = load_model(run, "last")
    who = Asker(model, model.head.draws(1, 0), "cpu", "float32")
    return density(who, torch.from_numpy(text)[None])[0].numpy()


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--place", type=int, default=50)
    parser.add_argument("--value", type=int, default=120)
    parser.add_argument("--data", type=Path, help="the prepared data folder; by default that of the run")
    parser.add_argument("--out", type=Path, default=Path("results/synthetic_walk.walk"))
    args = parser.parse_args(argv)
    _, ckpt = load_model(args.run, "last")
    tokens = open_tokens((args.data or found_path(ckpt.config["data"], Path(args.run))) / "test.bin")
    task = task_of(str(tokens.info["source"]))
    if not isinstance(task, Walk):
        raise UserError(f"{args.run} was not trained on the walk: give a run of --source=walk")
    text = np.full(task.T, FREE)
    text[args.place] = args.value - task.low
    exact = np.exp(task.log_probs(text[None])[0])
    rows = tokens.ids[: len(tokens.ids) // task.T * task.T].reshape(-1, task.T).astype(int)
    passing = rows[rows[:, args.place] == args.value - task.low]
    seen = np.stack([np.bincount(column, minlength=task.V) for column in passing.T]) / max(1, len(passing))
    said = learned(args.run, text)
    free = text == FREE
    kl = np.where(exact > 0, exact * np.log(np.maximum(exact, 1e-300) / np.maximum(said, 1e-300)), 0).sum(1)
    before, after = (float(kl[part & free].mean()) for part in side(task.T, args.place))
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
    figures.write(fig, args.out)
    settings = {"run": Path(args.run).name, "place": args.place, "value": args.value}
    found = {"kl_before": before, "kl_after": after, "walks": len(passing)}
    write_json(args.out.with_name(args.out.name + ".json"), {"settings": settings, **found})
    print(json.dumps(found))
    return 0


def side(T: int, place: int) -> tuple[np.ndarray, np.ndarray]:
    """The places before and after one."""
    at = np.arange(T)
    return at < place, at > place


if __name__ == "__main__":
    cli(main)()
