"""A search of settings: its points, the file of its trials, and what it found for each row."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

from evaluation import figures
from evaluation.rows import commit
from evaluation.runs import Ended, Run
from evaluation.settings import other_settings
from evaluation.tables import beside, json_table, number_strings, strict
from runtime.errors import UserError
from runtime.files import foreign, lock_of, locked, read_json, replacing

if TYPE_CHECKING:  # see figures.pyplot
    from matplotlib.figure import Figure

Point = dict[str, float]  # setting -> value
Entry = dict[str, Any]  # a trial in the file
Space = dict[str, list[float]]  # setting -> [lowest, highest]
OURS = "a search of tune.py: give another --name or --results, or move it away"


# -----------------------------------------------------------------------------
# Points


def points(space: Space, count: int) -> list[Point]:
    """The first `count` points of the search: a scrambled Sobol sequence, on a log scale in each setting.

    A pure function of the space: the first 8 of 16 points are the 8 of 8.
    """
    from scipy.stats import qmc

    if not space:
        return [{}] * count
    powers = math.ceil(math.log2(count))  # Sobol points are balanced in powers of two
    drawn = qmc.Sobol(len(space), scramble=True, rng=0).random_base2(powers)[:count]

    def value(key: str, x: float) -> float:
        low, high = space[key]
        return float(f"{low * (high / low) ** x:.3g}")

    return [{key: value(key, x) for key, x in zip(space, at)} for at in drawn]


def propose(space: Space, found: list[Entry]) -> Point:
    """The next point of a row whose trials `found` are: by a Gaussian process, where an improvement is most
    to be expected.

    Optuna's GPSampler, made anew from the trials: the same trials give the same point.
    """
    import optuna
    from optuna.exceptions import ExperimentalWarning

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    limits: dict[str, optuna.distributions.BaseDistribution] = {
        key: optuna.distributions.FloatDistribution(low, high, log=True) for key, (low, high) in space.items()
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        sampler = optuna.samplers.GPSampler(seed=0, n_startup_trials=1)
    study = optuna.create_study(sampler=sampler)
    for entry, nll in zip(found, losses(found)):
        point = {key: entry["point"][key] for key in space}
        study.add_trial(optuna.trial.create_trial(params=point, distributions=limits, value=nll))
    return {key: float(f"{value:.3g}") for key, value in study.ask(limits).params.items()}


def flags_of(point: Point, own: set[str]) -> list[str]:
    """train.py's flags for a point, but for the keys that the row sets itself (`own`).

    The lowest learning rate is a tenth of the highest.
    """
    flags = [f"--{key}={value:g}" for key, value in point.items()]
    if "learning_rate" in point and not own & {"learning_rate", "min_lr"}:
        flags.append(f"--min_lr={point['learning_rate'] / 10:.3g}")
    return flags


def own_keys(words: Sequence[str]) -> set[str]:
    """The keys that flags set."""
    return {w[2:].partition("=")[0] for w in words if w.startswith("--")}


@dataclass(frozen=True)
class Trial(Run):
    """A run of the search."""

    index: int
    point: Point

    def entry(self, ended: Ended) -> Entry:
        """What the file says of it."""
        keys = ("dtype", "data_sha256", "vocab_size", "teacher_weights", "init_weights")
        return {
            "row": self.row,
            "trial": self.index,
            "name": self.out.name,
            "point": self.point,
            "seed": self.seed,
            "nll": math.inf if ended.nll is None else ended.nll,
            "diverged": ended.nll is None,
            "chosen": self.chosen,
            **{k: ended.config.get(k) for k in keys},
        }


# -----------------------------------------------------------------------------
# The file of trials


class Store:
    """NAME.tune.json: all trials that are over."""

    def __init__(
        self, path: Path, settings: dict[str, Any] | None = None, said: dict[str, Any] | None = None
    ):
        """UserError if the file's trials are of other `settings`: keys of the table that all trials share.

        `said`: what else the file is to say of itself.
        """
        self.path, self.settings, self.said = path, settings or {}, said or {}
        self.read()

    def read(self) -> None:
        """Takes over what the file holds."""
        self.trials: dict[tuple[str, int], Entry] = {}
        if not self.path.is_file():
            return
        with foreign(self.path, OURS):
            table = read_json(self.path)
            had = table["settings"]
            self.trials = {(t["row"], t["trial"]): number_strings(t) for t in table["rows"]}
            for t in self.trials.values():
                {key: float(value) for key, value in t["point"].items()}, float(t["nll"]), t["chosen"]
        if odd := other_settings(had, self.settings):
            raise UserError(
                f"{self.path} holds trials of other settings ({'; '.join(odd)}): "
                "use those settings, or another --name"
            )

    def has(self, trial: Trial) -> bool:
        """Whether it holds this trial, of the same training."""
        entry = self.trials.get((trial.row, trial.index))
        return entry is not None and entry["chosen"] == trial.chosen

    def add(self, new: list[Entry]) -> None:
        """Writes the file with the `new` trials, beside those that another process has added since.

        UserError if they were trained on another text than the file's.
        """
        with locked(lock_of(self.path)):
            self.read()
            texts = {t["data_sha256"] for t in (*self.trials.values(), *new)}
            if len(texts) > 1:
                raise UserError(
                    f"{self.path}: trials of different training texts ({', '.join(sorted(texts))}) "
                    "cannot stand in one search; use another --name"
                )
            at = {"commit": commit()}
            self.trials |= {(t["row"], t["trial"]): t | at for t in new}
            rows = [strict(self.trials[key]) for key in sorted(self.trials)]
            with replacing(self.path) as f:
                f.write(json_table({"settings": self.settings, **self.said}, rows).encode())

    def of_row(self, row: str, count: int) -> list[Entry]:
        """The row's trials among the first `count`."""
        return [t for (name, index), t in sorted(self.trials.items()) if name == row and index < count]


def best_of(trials: list[Entry]) -> Entry | None:
    """The trial of the lowest validation NLL; None if there is none that did not diverge."""
    sound = [t for t in trials if math.isfinite(t["nll"])]
    return min(sound, key=lambda t: t["nll"], default=None)


# -----------------------------------------------------------------------------
# What was found


def losses(trials: list[Entry]) -> list[float]:
    """The validation NLL of each trial; of one that diverged that of a uniform distribution."""
    return [t["nll"] if math.isfinite(t["nll"]) else math.log(t["vocab_size"]) for t in trials]


def expected_best(values: Sequence[float], draws: int) -> float:
    """E[lowest of `draws` values], drawn with replacement from `values`: Dodge et al. 2019, arXiv 1909.03004.

    P(lowest > v_(i)) = ((N - i) / N)^draws for the i-th lowest of N.
    """
    n = len(values)
    above = [((n - i) / n) ** draws for i in range(n + 1)]
    return sum(v * (above[i] - above[i + 1]) for i, v in enumerate(sorted(values)))


def expected_perplexity(trials: list[Entry], draws: int) -> float:
    """exp of the expected lowest NLL: a trial that is far off counts by its logarithm."""
    return math.exp(expected_best(losses(trials), draws))


def best_value(best: Entry | None, trials: list[Entry], key: str) -> str:
    """The best trial's value of `key`, and which end of those that were tried it is, if it is one."""
    if best is None or key not in best["point"]:
        return "-"
    value = best["point"][key]
    tried = {t["point"][key] for t in trials}
    ends = {min(tried): " (lowest)", max(tried): " (highest)"} if len(tried) > 1 else {}
    return f"{value:g}{ends.get(value, '')}"


def report(store: Store, rows: Sequence[str], space: Space, design: int, count: int) -> str:
    """The search as a Markdown table: a line a row, its best point, and what the trials bought.

    The first `design` of `count` trials are those of the shared points.
    """
    design = min(design, count)
    draws = [2**k for k in range(design.bit_length()) if 2**k <= design]
    header = ["", "trials", "diverged", *space, "validation PPL", *(f"best of {n}" for n in draws)]
    body = []
    for row in rows:
        trials = store.of_row(row, count)
        if not trials:
            continue
        best = best_of(trials)
        line = [row, str(len(trials)), str(sum(t["diverged"] for t in trials))]
        line += [best_value(best, trials, key) for key in space]
        line.append(f"{math.exp(best['nll']):.1f}" if best else "-")
        shared = trials[:design]
        enough = [n for n in draws if n <= len(shared)]
        line += [f"{expected_perplexity(shared, n):.1f}" for n in enough]
        body.append(line + ["-"] * (len(draws) - len(enough)))
    table = tabulate(body, header, tablefmt="pipe", disable_numparse=True)
    return f"{table}\n\n{NOTE}\n"


NOTE = (
    "Best point of each row by the validation perplexity at the end of training, at one seed "
    "(PPL_eps of heads with exact zeros). (lowest), (highest): of the values that were tried; a better one "
    "may lie beyond. best of n: expected validation perplexity of the best of n trials, drawn with "
    "replacement from those at the points that all rows share (Dodge et al. 2019, arXiv 1909.03004), the "
    "exponential of the expected NLL; a trial that diverged counts as a uniform distribution. The row's "
    "further trials go where a Gaussian process expects an improvement. -: not searched, or too few "
    "trials. A table of fresh seeds at the best points: table.py --tuned."
)


def best_so_far(trials: list[Entry], design: int) -> list[float]:
    """Validation perplexity that n = 1, 2, ... trials buy: the expected best of n at the shared points, then
    the best of all that were made."""
    shared, nll = trials[:design], losses(trials)
    expected = [expected_perplexity(shared, n) for n in range(1, len(shared) + 1)]
    return expected + [math.exp(min(nll[:n])) for n in range(design + 1, len(trials) + 1)]


def figure(store: Store, rows: Sequence[str], design: int, count: int) -> "Figure | None":
    """Best validation perplexity against the number of trials: a panel a row, softmax behind it. None without
    trials."""
    curves = {}
    for row in rows:
        trials = store.of_row(row, count)
        if len(trials) > 1:
            curves[row] = best_so_far(trials, design)
    if not curves:
        return None
    base = curves.get(figures.BASELINE)
    fig, axes = figures.panels([r for r in curves if r != figures.BASELINE] or list(curves), 1.6)
    for ax, row in axes:
        for values, colour in ((base, figures.BASELINE_COLOUR), (curves[row], "tab:blue")):
            if values:
                ax.plot(range(1, len(values) + 1), values, color=colour, lw=1.2, marker=".", ms=3)
        ax.set_yscale("log")
    figures.plain_numbers(axes[0][0])
    fig.supxlabel(f"trials; grey: {figures.BASELINE}; the first {design} are at shared points")
    fig.supylabel("best validation perplexity")
    return fig


def write_report(store: Store, rows: Sequence[str], space: Space, design: int, count: int) -> str:
    """Writes NAME.tune.md and the figure beside the file of trials; what they say, for a terminal."""
    out = store.path.with_suffix("")
    text = report(store, rows, space, design, count)
    with locked(lock_of(out)):
        with replacing(beside(out, ".md")) as f:
            f.write(text.encode())
        fig = figure(store, rows, design, count)
        drawn = [str(p) for p in figures.write(fig, out)] if fig else []
    return "\n".join([text, *drawn])
