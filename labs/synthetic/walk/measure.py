"""The walk measure: what a model of any order says of a lazy random walk at every place, given one value.

    python table.py --measure=walk out/walk --out=out/walk/truth

KL is from the exact density to the model's, nats a place: means over the places before and after the known
one, which the model is asked about in one pass. OUT.png shows the exact density, what the test split has, and
the model's. A run is measured as it is at the end of training.
Source: Pannatier et al. 2024, arXiv 2404.09562, appendix 0.A and fig. 7.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from common.errors import UserError
from evaluate.sampling import WEIGHT_DRAWS, weight_draws
from labs.climbs.rest.figure import has_arrays, read_arrays, shade, write_arrays
from labs.climbs.rest.rest import density
from labs.orders.asking import Asker
from labs.orders.trunk import TRUNKS
from labs.sequences.questions import FREE
from labs.synthetic.prepare import corpus
from labs.synthetic.tasks import Walk
from tables import figures
from tables.checks import check_comparable, check_planned, open_split
from tables.measure import Measure, NamedRun, Session, open_runs
from tables.store import Row
from tables.views import View, problems, table
from training.run import load_model

COLUMNS = {"kl_before": "KL before", "kl_after": "KL after", "walks": "walks of the split"}
SHOWN = (40, 200)  # values of the figure


@dataclass
class WalkConfig:
    # fmt: off
    checkpoints: list[str]          # [NAME=]RUN ...: out folders of training runs on --source=walk
    place: int = 50                 # the one that is known
    value: int = 120                # of the walk there
    data: str = ""                  # the prepared data folder; empty: the one of the first run
    out: str = ""                   # writes OUT.jsonl, OUT.md and OUT.png or .pdf
    #                                 rows of unchanged checkpoints in it are kept
    figures: Literal["png", "pdf"] = "png"  # what the figure is written as; a PDF is vectors
    # fmt: on


def check_trunk(path: Path | str, trunk: str) -> None:
    """UserError for a run that cannot be asked about the places before a known one."""
    if trunk not in TRUNKS:
        raise UserError(f"{path} reads from left to right alone: give a run of config/sigma_gpt_random.py")


def walk_of(path: Path | str, source: str, place: int) -> Walk:
    """The walk of a run's source. UserError for another task, and for a place that it does not have."""
    walk = corpus.task(source)
    if not isinstance(walk, Walk):
        raise UserError(f"{path} was not trained on the walk: give a run of --source=walk")
    if not 0 <= place < walk.T:
        raise UserError(f"place = {place}: walks have the places 0 to {walk.T - 1}")
    return walk


class WalkSession(Session):
    """The runs that are asked for, and the walk's exact density beside that of the test split."""

    def __init__(self, c: WalkConfig):
        """UserError for all that cannot be measured, before any work."""
        self.c = c
        runs = open_runs(c.checkpoints, which="last")
        for run in runs:
            check_trunk(run.path, run.ckpt.config.trunk)
        check_comparable(runs, any_order=True)
        split = open_split(runs, c.data, "test")
        self.subjects, self.settings = runs, walk_settings(c) | {"corpus": split.info["sha256"]}
        walk = walk_of(runs[0].path, str(split.info["source"]), c.place)
        self.low, self.text = walk.low, np.full(walk.T, FREE)
        self.text[c.place] = token = c.value - walk.low
        rows = split.ids[: len(split.ids) // walk.T * walk.T].reshape(-1, walk.T).astype(int)
        self.passing = rows[rows[:, c.place] == token]  # walks of the split that are there
        if not len(self.passing):
            raise UserError(f"value = {c.value}: no walk of the test split is there at place {c.place}")
        self.exact = np.exp(walk.log_probs(self.text[None])[0])  # (T, V)

    def whole(self, row: Row) -> bool:
        return "problem" in row or has_arrays(self.c.out, row["name"])

    def numbers(self, subject: NamedRun) -> Row:
        """The COLUMNS of a run. The densities go to OUT.samples."""
        model, ckpt = load_model(subject.path, "last")
        asker = Asker(model, weight_draws(model, ckpt.record, WEIGHT_DRAWS, 0), "cpu", "float32")
        p, q = self.exact, density(asker, torch.from_numpy(self.text)[None])[0].numpy()
        with np.errstate(divide="ignore", invalid="ignore"):  # inf where q rules out what the truth allows
            kl = np.where(p > 0, p * (np.log(np.maximum(p, 1e-300)) - np.log(q)), 0).sum(1)
        counts = [np.bincount(tokens, minlength=p.shape[1]) for tokens in self.passing.T]
        split = np.stack(counts) / len(self.passing)
        numbers = {"low": np.array([self.low]), "walks": np.array([len(self.passing)])}
        write_arrays(self.c.out, subject.name, {"exact": p, "split": split, "model": q, **numbers})
        before, after = kl[: self.c.place], kl[self.c.place + 1 :]
        sides = {"kl_before": before, "kl_after": after}
        means = {side: float(values.mean()) for side, values in sides.items() if len(values)}
        return means | {"walks": len(self.passing)}


def walk_settings(c: WalkConfig) -> dict[str, Any]:
    """What two rows must share to stand in one table."""
    return {"place": c.place, "value": c.value}


class WalkMeasure(Measure):
    name, config, session = "walk", WalkConfig, WalkSession

    def check(self, c: WalkConfig, wanted: Sequence[dict[str, Any]]) -> dict[str, Any]:
        for run in wanted:
            check_trunk(run["out_dir"], run["trunk"])
            walk_of(run["out_dir"], run["source"], c.place)
        check_planned(wanted, any_order=True)
        return walk_settings(c)

    def view(self, rows: list[Row]) -> View:
        """A line a run."""
        measured = [row for row in rows if "problem" not in row]
        lines = [
            [row["name"], *(f"{row[key]:.4g}" if key in row else "-" for key in COLUMNS)] for row in measured
        ]
        return View([table(["", *COLUMNS.values()], lines), problems(rows)])

    def draw(self, rows: list[Row], out: Path, form: str) -> list[Path]:
        """OUT.png: the exact density, the split's, and that of each run that has its arrays."""
        kept = {row["name"]: arrays for row in rows if (arrays := read_arrays(out, row["name"]))}
        if not kept:
            return []
        first = next(iter(kept.values()))
        panels = {"exact": first["exact"], f"test split ({first['walks'][0]} walks)": first["split"]}
        panels |= {name: arrays["model"] for name, arrays in kept.items()}
        return draw_panels(panels, int(first["low"][0]), out, form)


def draw_panels(panels: dict[str, np.ndarray], low: int, out: Path, form: str) -> list[Path]:
    """OUT.png or OUT.pdf: a panel for each density (T, V), whose first token is the value `low`."""
    plt = figures.pyplot()
    fig, axes = plt.subplots(1, len(panels), figsize=(3 * len(panels), 3), sharey=True)
    ticks = np.arange(60, 200, 20) - low
    for ax, (title, p) in zip(axes, panels.items()):
        shade(ax, p, 0.6)
        ax.set(title=title, xlabel="place")
        ax.set_yticks(ticks, [str(tick + low) for tick in ticks])
        ax.set_ylim(*(value - low for value in SHOWN))
    axes[0].set_ylabel("value")
    return figures.write(fig, out, form)


MEASURE = WalkMeasure()
