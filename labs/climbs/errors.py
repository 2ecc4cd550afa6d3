"""The rest of climbs given parts of them, by trained runs: errors in ft/min, nats, and a figure.

    python labs/climbs/errors.py out/climbs/*-climbs-* [--out=results/climbs.rest] [--climb=3]

nll        nats a token of the rest, by the chain rule from left to right
mean       root mean squared error of the conditional mean, ft/min. It is estimated from the samples, and
           what their number adds to its square (their variance / samples) is taken off
sample     the same of a sample: never less than that of the mean, by what the model leaves open
one pass   the same of the mean of each place's density, which any-order and masked models say in one pass

Errors are over the places that are not known. The parts: the first rate; then a tenth, and half, of the
others; then a tenth and a single place at three quarters, of which a left-to-right model cannot be told.
Rows are means over the runs of a configuration, with 95% intervals by Student's t over their seeds. On
simulated climbs `truth` is the exact posterior.

OUT.embeddings shows where whole climbs that were sampled lie beside those of the split: t-SNE of their rates.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from runtime.configurator import check_seed
from runtime.door import Program
from runtime.errors import UserError


@dataclass
class ClimbsConfig:
    # fmt: off
    checkpoints: list[str]          # out folders of training runs on climbs, or checkpoints in them
    split: Literal["validation", "test"] = "test"
    windows: int = 50               # climbs, evenly over the split
    samples: int = 20               # of the rest of each; the document has as many
    climb: int = 0                  # which of them the figure shows
    data: str = ""                  # the prepared data folder; empty: the one of the first run
    seed: int = 1337                # of the samples
    device: str = "auto"
    out: str = "results/climbs.rest"  # writes OUT.jsonl, OUT.md, OUT.png and OUT.embeddings.png
    # fmt: on

    def check(self) -> None:
        """UserError naming the value that cannot work."""
        for key, least in (("windows", 1), ("samples", 2), ("climb", 0)):
            if getattr(self, key) < least:
                raise UserError(f"{key} = {getattr(self, key)}: must be at least {least}")
        check_seed(self.seed)


program = Program(__name__, __doc__, ClimbsConfig, "scipy", "tabulate", "sklearn", "matplotlib")

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from data.sequences import Chain, Sequences
from evaluation import figures
from evaluation.any_order import FREE, Exact
from evaluation.orders import Asker, spread
from evaluation.samplers import left_to_right
from evaluation.sampling import weight_draws
from evaluation.settings import run_seed
from evaluation.two_sided import two_sided
from labs.climbs.rates import RATES, STEP
from labs.climbs.rest import can_be_asked, density, nats, written
from labs.embeddings import tsne
from measures.checks import check_comparable, open_split
from measures.measure import NamedRun, open_runs
from measures.store import Row, Store
from measures.summary import grouped
from measures.views import Grid, View, mean
from runtime.checkpoint import load_model
from runtime.configurator import cli
from runtime.device import get_device
from runtime.files import beside
from runtime.provenance import commit

COLUMNS = ("nll", "mean", "sample", "one pass")
SHOWN = ("10%", "10% and a later place")  # what is known in the rows of the figure
FUTURES = 6  # in each panel of the figure


class Asked(NamedTuple):
    """What all runs are asked about."""

    windows: Tensor  # (n, T)
    parts: dict[str, np.ndarray]  # name -> which places are known (T,)
    truth: Chain | None


def parts_of(T: int, given: int) -> dict[str, np.ndarray]:
    def start(share: float) -> np.ndarray:
        return np.arange(T) < given + round(share * (T - given))

    later = start(0.1) | (np.arange(T) == 3 * T // 4)
    return {"the first rate": start(0), "10%": start(0.1), "50%": start(0.5), SHOWN[1]: later}


def known_of(windows: Tensor, known: np.ndarray) -> Tensor:
    """`windows` (n, T), FREE where not known."""
    return torch.where(torch.from_numpy(known), windows, FREE)


# -----------------------------------------------------------------------------
# Errors


def rms(square: np.ndarray) -> float:
    """The root of a mean of squares, of which an estimate may be below 0."""
    return float(np.sqrt(max(0.0, square.mean())))


def of_model(who: Asker, a: Asked, known: np.ndarray, samples: int, seed: int) -> dict[str, float]:
    """The model's COLUMNS, as far as it has them."""
    text = known_of(a.windows, known)
    if not can_be_asked(who, text):
        return {}
    right = RATES[a.windows[:, ~known]]  # (n, F)
    futures = written(who, text.repeat_interleave(samples, 0), seed)[:, ~known]
    rates = RATES[futures].reshape(len(text), samples, -1)
    found = {"nll": nats(who, text, a.windows)}
    found["mean"] = rms((rates.mean(1) - right) ** 2 - rates.var(1, ddof=1) / samples)
    found["sample"] = rms((rates - right[:, None]) ** 2)
    if who.order != "left_to_right":
        found["one pass"] = rms((density(who, text).numpy()[:, ~known] @ RATES - right) ** 2)
    return found


def of_truth(task: Chain, a: Asked, known: np.ndarray) -> dict[str, float]:
    """The exact posterior's COLUMNS. The error of a sample is its expectation: no sample is drawn."""
    text, whole = known_of(a.windows, known).numpy(), a.windows.numpy()
    p = np.exp(task.log_probs(text))[:, ~known]
    error = (p @ RATES - RATES[whole[:, ~known]]) ** 2
    spread = p @ RATES**2 - (p @ RATES) ** 2
    left = task.log_evidence(text) - task.log_evidence(whole)
    found = {"nll": float(left.sum() / error.size), "mean": rms(error), "sample": rms(error + spread)}
    return found | {"one pass": found["mean"]}


def view(rows: list[Row]) -> View:
    """A table for each part that is known: a line a row, the truth's first."""
    groups = {r["name"]: [r] for r in rows if r.get("reference")} | grouped(rows)
    tables = []
    for part in rows[0]["parts"]:
        lines = []
        for name, runs in groups.items():
            found = [r["parts"][part] for r in runs]
            lines.append([name, str(len(runs)), *(mean([f[c] for f in found if c in f]) for c in COLUMNS)])
        tables.append(Grid([f"known: {part}", "runs", *COLUMNS], lines))
    return View(tables)


# -----------------------------------------------------------------------------
# The figure


class Panel(NamedTuple):
    futures: np.ndarray  # (FUTURES, T) tokens
    density: np.ndarray | None  # (T, V)


def panel_of(who: Asker, text: Tensor, seed: int) -> Panel | None:
    """What a model says of one text (1, T)."""
    if not can_be_asked(who, text):
        return None
    futures = written(who, text.expand(FUTURES, -1), seed).numpy()
    return Panel(futures, None if who.order == "left_to_right" else density(who, text)[0].numpy())


def panel_of_truth(task: Chain, text: Tensor, seed: int) -> Panel:
    exact = Exact(lambda t: torch.from_numpy(task.log_probs(t.numpy())), text.expand(FUTURES, -1))
    futures = left_to_right(exact, torch.Generator().manual_seed(seed)).text.numpy()
    return Panel(futures, np.exp(task.log_probs(text.numpy())[0]))


def draw(columns: dict[str, list[Panel | None]], whole: Tensor, knowns: list[np.ndarray], out: Path) -> None:
    """A column for each model and a row for each part that is known of the climb `whole` (T,). Grey: the
    density at each time; lines: futures; points: what is known; dashed: what came."""
    plt = figures.pyplot()
    size = (2.6 * len(columns), 2.3 * len(knowns))
    fig, axes = plt.subplots(len(knowns), len(columns), figsize=size, sharex=True, sharey=True, squeeze=False)
    minutes = np.arange(len(whole)) * STEP / 60
    half = np.array([-1, 1]) / 2
    extent = (*(minutes[[0, -1]] + half * STEP / 60), *(RATES[[0, -1]] + half * np.diff(RATES)[0]))
    for number, (name, panels) in enumerate(columns.items()):
        for ax, panel, known in zip(axes[:, number], panels, knowns):
            if panel is None:
                ax.text(0.5, 0.5, "cannot be asked", ha="center", transform=ax.transAxes)
                continue
            if panel.density is not None:
                shade = np.sqrt(panel.density.T)
                ax.imshow(shade, origin="lower", aspect="auto", cmap="Greys", vmin=0, vmax=0.8, extent=extent)
            for n, future in enumerate(panel.futures):
                ax.plot(minutes, RATES[future], color=f"C{n}", lw=0.6)
            ax.plot(minutes, RATES[whole], "--", color="black", lw=0.7)
            ax.plot(minutes[known], RATES[whole[known]], ".", color="black", ms=4)
        axes[0, number].set_title(name)
        axes[-1, number].set_xlabel("minutes")
    for ax, part in zip(axes[:, 0], SHOWN):
        ax.set_ylabel(f"ft/min ({part})")
    figures.write(fig, out)


def draw_whole(whole: dict[str, np.ndarray], windows: Tensor, out: Path) -> None:
    """Draws t-SNE of each row's whole climbs (n, T), tokens, and of the split's, if these are enough."""
    if len(windows) >= tsne.LEAST:
        rows = {
            name: RATES[climbs].astype(float) for name, climbs in ({"real": windows.numpy()} | whole).items()
        }
        tsne.draw(rows, beside(out, ".embeddings"), real="real")


# -----------------------------------------------------------------------------
# The command


def opened(c: ClimbsConfig) -> tuple[list[NamedRun], Asked]:
    """UserError for all that cannot be measured, before any work."""
    runs = open_runs(c.checkpoints)
    check_comparable(runs, masked=True)
    config = runs[0].ckpt.config
    if config["dataset"] != "climbs":
        raise UserError(f"{runs[0].path} was trained on {config['dataset']}: give runs of config/climbs.py")
    data = open_split(runs, c.data, c.split)
    T = config["block_size"]
    windows = torch.from_numpy(spread(data.ids, c.windows, T))
    if c.climb >= len(windows):
        raise UserError(f"climb = {c.climb}: there are {len(windows)}; the first is 0")
    truth = two_sided(data, "climbs", T)
    task = truth.task if isinstance(truth, Sequences) and isinstance(truth.task, Chain) else None
    return runs, Asked(windows, parts_of(T, data.given), task)


@program
def main(c: ClimbsConfig) -> int:
    store = Store.beside(c.out)
    runs, a = opened(c)
    text = {part: known_of(a.windows[c.climb : c.climb + 1], a.parts[part]) for part in SHOWN}
    places = ("checkpoints", "data", "device", "out")
    settings = {key: value for key, value in vars(c).items() if key not in places}
    common: Row = {"measure": "rest", "definition": 1, "settings": settings}
    rows: list[Row] = []
    columns: dict[str, list[Panel | None]] = {}
    whole: dict[str, np.ndarray] = {}
    begun = known_of(a.windows, a.parts["the first rate"])
    if a.truth:
        parts = {part: of_truth(a.truth, a, known) for part, known in a.parts.items()}
        rows.append({**common, "reference": True, "name": "truth", "parts": parts})
        columns["exact"] = [panel_of_truth(a.truth, t, c.seed) for t in text.values()]
    device = get_device(c.device)
    for entry in runs:
        print(f"{entry.name} ...", file=sys.stderr)
        model, ckpt = load_model(entry.path, "last", device)
        who = Asker(model, weight_draws(model, ckpt.config, 1, c.seed), device, "float32")
        seed = run_seed(c.seed, ckpt.config)
        parts = {part: of_model(who, a, known, c.samples, seed) for part, known in a.parts.items()}
        read = entry._replace(ckpt=ckpt)
        row = {**common, "name": entry.name, **read.facts(), **read.identity(), "commit": commit()}
        rows.append({**row, "parts": parts})
        if row["row"] not in columns:
            columns[row["row"]] = [panel_of(who, t, seed) for t in text.values()]
            whole[row["row"]] = written(who, begun, seed).numpy()
    store.put(rows)
    shown = view(rows)
    print(shown.markdown, end="")
    shown.write(Path(c.out))
    draw(columns, a.windows[c.climb], [a.parts[part] for part in SHOWN], Path(c.out))
    draw_whole(whole, a.windows, Path(c.out))
    return 0


if __name__ == "__main__":
    cli(main)()
