"""A search for each row's own best settings: its points, its trials, and what they bought.

All rows have the same number of trials. The first `design` of them are at the same points for all rows: a
scrambled Sobol sequence, a pure function of the space. They do not depend on each other, as the expected best
of n trials asks for (Dodge et al. 2019, arXiv 1909.03004), and spread points find more than a grid's where
one setting matters more than another (Bergstra and Bengio 2012). Eight points over two settings miss the best
one by several per cent, which is more than heads differ by. So the others are each row's own: Optuna's
Gaussian process asks for the point where it expects the largest improvement on the row's trials so far. It is
made anew from these: the same trials give the same next point, and no database is needed.

A trial is a row of the store under the measure "search".
"""

import math
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tabulate import tabulate

from evaluation import figures
from measures.store import Row, Store
from measures.views import View, beside

if TYPE_CHECKING:  # see figures.pyplot
    from matplotlib.figure import Figure

Point = dict[str, float]  # setting -> value
Space = dict[str, list[float]]  # setting -> [lowest, highest]
NAME, DEFINITION = "search", 1


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


def propose(space: Space, trials: list[Row]) -> Point:
    """The next point of a row after these trials: where a Gaussian process expects the largest improvement.

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
    for trial, nll in zip(trials, losses(trials)):
        point = {key: trial["point"][key] for key in space}
        study.add_trial(optuna.trial.create_trial(params=point, distributions=limits, value=nll))
    return {key: float(f"{value:.3g}") for key, value in study.ask(limits).params.items()}


def flags_of(point: Point, fixed: set[str]) -> list[str]:
    """train.py's flags for a point, but for the keys that the row sets itself (`fixed`).

    The lowest learning rate is a tenth of the highest.
    """
    flags = [f"--{key}={value:g}" for key, value in point.items()]
    if "learning_rate" in point and not fixed & {"learning_rate", "min_lr"}:
        flags.append(f"--min_lr={point['learning_rate'] / 10:.3g}")
    return flags


def keys_of(words: Sequence[str]) -> set[str]:
    """The keys that flags set."""
    return {word[2:].partition("=")[0] for word in words if word.startswith("--")}


# -----------------------------------------------------------------------------
# Trials


def trials_of(rows: Iterable[Row], row: str, count: int) -> list[Row]:
    """The row's trials among the first `count`, in their order."""
    own = [r for r in rows if r["row"] == row and r["trial"] < count]
    return sorted(own, key=lambda r: r["trial"])


def best_of(trials: list[Row]) -> Row | None:
    """The trial of the lowest validation NLL; None if there is none that did not diverge."""
    sound = [t for t in trials if math.isfinite(t["nll"])]
    return min(sound, key=lambda t: t["nll"], default=None)


def losses(trials: list[Row]) -> list[float]:
    """The validation NLL of each trial; of one that diverged that of a uniform distribution."""
    return [t["nll"] if math.isfinite(t["nll"]) else math.log(t["vocab_size"]) for t in trials]


def expected_best(values: Sequence[float], draws: int) -> float:
    """E[lowest of `draws` values], drawn with replacement from `values`: Dodge et al. 2019, arXiv 1909.03004.

    P(lowest > v_(i)) = ((N - i) / N)^draws for the i-th lowest of N.
    """
    n = len(values)
    above = [((n - i) / n) ** draws for i in range(n + 1)]
    return sum(v * (above[i] - above[i + 1]) for i, v in enumerate(sorted(values)))


def expected_perplexity(trials: list[Row], draws: int) -> float:
    """exp of the expected lowest NLL: a geometric mean, in which a trial that is far off counts by its
    logarithm."""
    return math.exp(expected_best(losses(trials), draws))


# -----------------------------------------------------------------------------
# Views


def best_value(best: Row | None, trials: list[Row], key: str) -> str:
    """The best trial's value of `key`, and which end of those that were tried it is, if it is one."""
    if best is None or key not in best["point"]:
        return "-"
    value = best["point"][key]
    tried = {t["point"][key] for t in trials}
    ends = {min(tried): " (lowest)", max(tried): " (highest)"} if len(tried) > 1 else {}
    return f"{value:g}{ends.get(value, '')}"


def view(rows: list[Row]) -> View:
    """The search as Markdown: a line a row, its best point, and what the trials bought."""
    space, design = rows[0]["settings"]["space"], rows[0]["settings"]["design"]
    design = min(design, 1 + max(r["trial"] for r in rows))
    draws = [2**k for k in range(design.bit_length()) if 2**k <= design]
    header = ["", "trials", "diverged", *space, "validation PPL", *(f"best of {n}" for n in draws)]
    body = []
    for row in dict.fromkeys(r["row"] for r in rows):
        trials = trials_of(rows, row, len(rows))
        best = best_of(trials)
        line = [row, str(len(trials)), str(sum(t["diverged"] for t in trials))]
        line += [best_value(best, trials, key) for key in space]
        line.append(f"{math.exp(best['nll']):.1f}" if best else "-")
        shared = [t for t in trials if t["trial"] < design]
        enough = [n for n in draws if n <= len(shared)]
        line += [f"{expected_perplexity(shared, n):.1f}" for n in enough]
        body.append(line + ["-"] * (len(draws) - len(enough)))
    table = tabulate(body, header, tablefmt="pipe", disable_numparse=True)
    return View(f"{table}\n\n{NOTE}\n")


NOTE = (
    "Best point of each row by the validation perplexity at the end of training, at one seed "
    "(PPL_eps of heads with exact zeros). (lowest), (highest): of the values that were tried; a better one "
    "may lie beyond. best of n: expected validation perplexity of the best of n trials, drawn with "
    "replacement from those at the points that all rows share (Dodge et al. 2019, arXiv 1909.03004), the "
    "exponential of the expected NLL; a trial that diverged counts as a uniform distribution. The row's "
    "further trials go where a Gaussian process expects an improvement. -: not searched, or too few "
    "trials. A table of fresh seeds at the best points: table.py --tuned."
)


def best_so_far(trials: list[Row], design: int) -> list[float]:
    """Validation perplexity that n = 1, 2, ... trials buy: the expected best of n at the shared points, then
    the best of all that were made."""
    shared, nll = trials[:design], losses(trials)
    expected = [expected_perplexity(shared, n) for n in range(1, len(shared) + 1)]
    return expected + [math.exp(min(nll[:n])) for n in range(design + 1, len(trials) + 1)]


def figure(rows: list[Row]) -> "Figure | None":
    """Best validation perplexity against the number of trials: a panel a row, softmax behind it. None without
    trials."""
    design = rows[0]["settings"]["design"]
    each = {row: trials_of(rows, row, len(rows)) for row in dict.fromkeys(r["row"] for r in rows)}
    curves = {row: best_so_far(trials, design) for row, trials in each.items() if len(trials) > 1}
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


def write_views(store: Store, out: Path) -> str:
    """OUT.md and the figure of all trials in the store; the Markdown."""
    rows = store.rows(NAME)
    shown = view(rows)
    shown.write(out)
    if fig := figure(rows):
        figures.write(fig, beside(out, ""))
    return shown.markdown
