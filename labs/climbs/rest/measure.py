"""The rest measure: the rest of climbs given parts of them, as errors in ft/min and nats, and a figure.

    python table.py --measure=rest out/climbs/*-climbs-* --out=results/climbs.rest [--climb=3]

nll        nats a token of the rest, by the chain rule from left to right
mean       root mean squared error of the conditional mean, ft/min. It is estimated from the samples, and
           what their number adds to its square (their variance / samples) is taken off
sample     the same of a sample: never less than that of the mean, by what the model leaves open
one pass   the same of the mean of each place's density, which any-order and masked models say in one pass

Errors are over the places that are not known. The parts: the first rate; then a tenth, and half, of the
others; then a tenth and a single place at three quarters, of which a left-to-right model cannot be told.
Rows are means over the runs of a configuration, with 95% intervals by Student's t over their seeds. On
simulated climbs `truth` is the exact posterior. A run is measured as it is at the end of training.

OUT.png shows futures of one climb. OUT.embeddings.png shows where whole climbs that were sampled lie beside
those of the split: t-SNE of their rates. Both are drawn from the arrays in OUT.samples.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from common.config import AtLeast2, Natural, Positive, Seed
from common.device import get_device
from common.errors import UserError
from evaluate.sampling import WEIGHT_DRAWS, weight_draws
from evaluate.settings import run_seed
from labs.climbs.rates import RATES
from labs.climbs.rest.figure import (
    Panel,
    draw_climbs,
    draw_futures,
    has_arrays,
    panel_arrays,
    read_arrays,
    write_arrays,
)
from labs.climbs.rest.rest import can_be_asked, density, rest_nats, sample_rest
from labs.orders.asking import Asker
from labs.sequences.exact import Chain, Sequences
from labs.sequences.questions import FREE, spread
from labs.sequences.two_sided import two_sided
from tables.checks import check_comparable, check_planned, open_split
from tables.measure import Measure, NamedRun, Session, open_runs
from tables.store import Row
from tables.summary import grouped
from tables.views import View, mean, problems, table
from training.run import load_model

COLUMNS = ("nll", "mean", "sample", "one pass")
DRAWN = ("10%", "10% and a later place")  # what is known in the lines of the figure
SETTINGS = ("split", "windows", "samples", "climb", "seed")


@dataclass
class RestConfig:
    # fmt: off
    checkpoints: list[str]          # [NAME=]RUN ...: out folders of training runs on climbs
    split: Literal["validation", "test"] = "test"
    windows: Positive = 50          # climbs, evenly over the split
    samples: AtLeast2 = 20          # of the rest of each; the document has as many
    climb: Natural = 0              # which of them the figure shows
    data: str = ""                  # the prepared data folder; empty: the one of the first run
    seed: Seed = 1337               # of the samples
    device: str = "auto"
    out: str = ""                   # writes OUT.jsonl, OUT.md, and the figures OUT and OUT.embeddings
    #                                 rows of unchanged checkpoints in it are kept
    figures: Literal["png", "pdf"] = "png"  # what these are written as; a PDF is vectors
    # fmt: on


def parts_of(T: int, given: int) -> dict[str, np.ndarray]:
    """The parts of sequences of T tokens that are known: name -> places (T,), bool."""

    def start(share: float) -> np.ndarray:
        return np.arange(T) < given + round(share * (T - given))

    later = start(0.1) | (np.arange(T) == 3 * T // 4)
    return {"the first rate": start(0), "10%": start(0.1), "50%": start(0.5), DRAWN[1]: later}


def known_of(windows: Tensor, known: np.ndarray) -> Tensor:
    """`windows` (n, T), FREE where not known."""
    return torch.where(torch.from_numpy(known), windows, FREE)


# -----------------------------------------------------------------------------
# Errors


def rms(square: np.ndarray) -> float:
    """The root of a mean of squares, of which an estimate may be below 0."""
    return float(np.sqrt(max(0.0, square.mean())))


def model_errors(
    asker: Asker, windows: Tensor, known: np.ndarray, samples: int, seed: int
) -> dict[str, float]:
    """The model's COLUMNS for the rest of windows (n, T), as far as it has them."""
    text = known_of(windows, known)
    if not can_be_asked(asker, text):
        return {}
    right = RATES[windows[:, ~known]]  # (n, F)
    futures = sample_rest(asker, text.repeat_interleave(samples, 0), seed)[:, ~known]
    rates = RATES[futures].reshape(len(text), samples, -1)
    errors = {"nll": rest_nats(asker, text, windows)}
    errors["mean"] = rms((rates.mean(1) - right) ** 2 - rates.var(1, ddof=1) / samples)
    errors["sample"] = rms((rates - right[:, None]) ** 2)
    if asker.order != "left_to_right":
        errors["one pass"] = rms((density(asker, text).numpy()[:, ~known] @ RATES - right) ** 2)
    return errors


def truth_errors(chain: Chain, windows: Tensor, known: np.ndarray) -> dict[str, float]:
    """The exact posterior's COLUMNS. The error of a sample is its expectation: no sample is drawn."""
    text, whole = known_of(windows, known).numpy(), windows.numpy()
    p = np.exp(chain.log_probs(text))[:, ~known]
    error = (p @ RATES - RATES[whole[:, ~known]]) ** 2
    variance = p @ RATES**2 - (p @ RATES) ** 2
    nats = chain.log_evidence(text) - chain.log_evidence(whole)
    errors = {"nll": float(nats.sum() / error.size), "mean": rms(error), "sample": rms(error + variance)}
    return errors | {"one pass": errors["mean"]}


# -----------------------------------------------------------------------------
# The measure


def check_dataset(path: Path | str, dataset: str) -> None:
    """UserError for a run on anything but climbs."""
    if dataset != "climbs":
        raise UserError(f"{path} was trained on {dataset}: give runs of config/climbs.py")


class RestSession(Session):
    """The runs that are asked for, and the climbs of which they are told parts."""

    def __init__(self, c: RestConfig):
        """UserError for all that cannot be measured, before any work."""
        self.c, self.device = c, get_device(c.device)
        runs = open_runs(c.checkpoints, which="last")
        for run in runs:
            check_dataset(run.path, run.ckpt.config.dataset)
        check_comparable(runs, any_order=True)
        data, T = open_split(runs, c.data, c.split), runs[0].ckpt.config.block_size
        self.subjects = runs
        self.settings = rest_settings(c) | {"block_size": T, "corpus": data.info["sha256"]}
        self.windows = torch.from_numpy(spread(data.ids, c.windows, T))  # (n, T)
        if c.climb >= len(self.windows):
            raise UserError(f"climb = {c.climb}: there are {len(self.windows)}; the first is 0")
        self.given, self.parts = data.given, parts_of(T, data.given)
        truth = two_sided(data, "climbs", T)
        task = truth.task if isinstance(truth, Sequences) else None
        self.chain = task if isinstance(task, Chain) else None  # None where nobody knows the truth
        self.reference_names = ("truth",) if self.chain else ()

    def whole(self, row: Row) -> bool:
        return "problem" in row or has_arrays(self.c.out, row["name"])

    def references(self) -> list[Row]:
        """The exact posterior."""
        chain = self.chain
        assert chain is not None  # else there are none
        panels = [Panel.from_truth(chain, text, self.c.seed) for text in self._figure_texts()]
        self._write("truth", panels)
        parts = {part: truth_errors(chain, self.windows, known) for part, known in self.parts.items()}
        return [{"name": "truth", "parts": parts}]

    def numbers(self, subject: NamedRun) -> Row:
        """ "parts": the COLUMNS for each part that is known. What the figures show goes to OUT.samples."""
        model, ckpt = load_model(subject.path, "last", self.device)
        draws = weight_draws(model, ckpt.record, WEIGHT_DRAWS, self.c.seed)
        asker = Asker(model, draws, self.device, "float32", self.given)
        seed, samples = run_seed(self.c.seed, ckpt.record), self.c.samples
        parts = {
            part: model_errors(asker, self.windows, known, samples, seed)
            for part, known in self.parts.items()
        }
        begun = known_of(self.windows, self.parts["the first rate"])
        panels = [Panel.from_model(asker, text, seed) for text in self._figure_texts()]
        self._write(subject.name, panels, sampled=sample_rest(asker, begun, seed).numpy())
        return {"parts": parts}

    def _figure_texts(self) -> list[Tensor]:
        """The climb of the figure (1, T), as far as it is known in each line."""
        window = self.windows[self.c.climb : self.c.climb + 1]
        return [known_of(window, self.parts[part]) for part in DRAWN]

    def _write(self, name: str, panels: list[Panel], **sampled: np.ndarray) -> None:
        known = np.stack([self.parts[part] for part in DRAWN])
        arrays = {"real": self.windows.numpy(), "known": known, **panel_arrays(panels), **sampled}
        write_arrays(self.c.out, name, arrays)


def rest_settings(c: RestConfig) -> dict[str, Any]:
    """What two rows must share to stand in one table."""
    return {key: getattr(c, key) for key in SETTINGS}


class RestMeasure(Measure):
    name, config, session = "rest", RestConfig, RestSession

    def check(self, c: RestConfig, wanted: Sequence[dict[str, Any]]) -> dict[str, Any]:
        for run in wanted:
            check_dataset(run["out_dir"], run["dataset"])
        check_planned(wanted, any_order=True)
        return rest_settings(c)

    def view(self, rows: list[Row]) -> View:
        """A table for each part that is known: a line a row, the truth's first."""
        measured = [row for row in rows if "problem" not in row]
        tables = []
        for part in measured[0]["parts"] if measured else ():
            lines = []
            for name, runs in groups_of(measured).items():
                errors = [run["parts"][part] for run in runs]
                means = (mean([e[c] for e in errors if c in e]) for c in COLUMNS)
                lines.append([name, str(len(runs)), *means])
            tables.append(table([f"known: {part}", "runs", *COLUMNS], lines))
        return View([*tables, problems(rows)])

    def draw(self, rows: list[Row], out: Path, form: str) -> list[Path]:
        """OUT.png and OUT.embeddings.png, of the first run of each row; none without their arrays."""
        columns = {}
        for label, (first, *_) in groups_of(row for row in rows if "problem" not in row).items():
            if arrays := read_arrays(out, first["name"]):
                columns["exact" if first.get("reference") else label] = arrays
        if not columns:
            return []
        climb = rows[0]["settings"]["climb"]
        return draw_futures(columns, DRAWN, climb, out, form) + draw_climbs(columns, out, form)


def groups_of(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The runs of each training; the truth's row by itself and first."""
    rows = list(rows)
    return {row["name"]: [row] for row in rows if row.get("reference")} | grouped(rows)


MEASURE = RestMeasure()
