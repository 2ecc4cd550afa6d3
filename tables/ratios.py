"""Each row's perplexity over the first row's, twice: each at its best, and all at the same places.

*At its best*: each row at the best point of its own search, fresh seeds, the test split. This is fair, and
coarse: a search of a dozen trials ends a per cent above the next one's.

*At the same places*: the search's trials at the points that all rows share, one seed, the validation split.
Two trainings at one point have most of their noise in common, so this is sharp. But a point may suit one
head, and a row with a constant of its own has another one at each point: it is left out.
"""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from common.errors import reading
from tables import figures
from tables.search import best_of, losses, search_errors, trials_of
from tables.statistics import Estimate, estimate, holm
from tables.store import Row
from tables.summary import grouped, quality_of
from tables.views import View, table

if TYPE_CHECKING:  # see figures.pyplot
    from matplotlib.figure import Figure

NEAR = 0.05  # a shared point counts where the first row is within so many nats of its best trial


class Comparison(NamedTuple):
    """Logarithms of perplexities over the first row's, of each other row by its name."""

    first: str
    best: dict[str, Estimate]  # each row at its best
    same: dict[str, Estimate]  # at the same places
    places: int  # how many count

    @property
    def names(self) -> list[str]:
        """Lowest first: at their best or, where that is not known, at the same places."""
        of = self.same | self.best
        return sorted(of, key=lambda name: of[name].mean)


def compare(rows: list[Row], trials: list[Row]) -> Comparison:
    """Both comparisons of a tuned table's `rows`; without any where no row has a perplexity."""
    groups = {
        name: {r["seed"]: r for r in runs if "problem" not in r} for name, runs in grouped(rows).items()
    }
    key, first = quality_of(rows), next(iter(groups), "")
    if not key:
        return Comparison(first, {}, {}, 0)

    errors, best = search_errors(trials), {}
    for name, runs in groups.items():
        pairs = [math.log(runs[s][key] / groups[first][s][key]) for s in runs if s in groups[first]]
        if name != first and pairs:
            best[name] = estimate(pairs, *(errors[row] for row in (name, first) if row in errors))

    # The shared points that count, and the rows that were trained at all of them
    own, same = trials_of(trials, first), {}
    lowest, shared = best_of(own), own[: own[0]["settings"]["design"]] if own else []
    places = {place(t): t["nll"] for t in shared if lowest and t["nll"] < lowest["nll"] + NEAR}
    for name in dict.fromkeys([*best, *(t["row"] for t in trials if t["row"] != first)]):
        own = trials_of(trials, name)
        nll = {place(t): value for t, value in zip(own, losses(own))}
        constant = own and own[0]["settings"].get("own_space")  # of its own: another one at each point
        if places and places.keys() <= nll.keys() and not constant:
            same[name] = estimate([nll[at] - value for at, value in places.items()])
    return Comparison(first, best, same, len(places))


def place(trial: Row) -> tuple:
    """What two trials at the same place share."""
    return trial["seed"], *sorted(trial["point"].items())


def pace_of(path: Path, first: str) -> dict[str, float]:
    """The time of each row's step over the first row's, of a JSON of bench/training.py; {} if it has no first
    row."""
    with reading(path):
        seconds = {r["program"]: r["cpu_seconds"] for r in json.loads(path.read_text())["results"]}
        return {name: value / seconds[first] for name, value in seconds.items() if first in seconds}


def costs(rows: Iterable[Row], first: str, pace: dict[str, float]) -> dict[str, float]:
    """What each row's training takes over the first row's: its pace times its tokens. A teacher's training
    counts at the first row's pace, and each token that it reads for labels as a third of one, because nothing
    goes backward."""
    known = {row["row"]: row for row in rows if row.get("row") in pace and "train_tokens" in row}
    out = {}
    for name, row in known.items() if first in known else ():
        taught = (row["training"].get("teacher_spent") or {}).get("train_tokens", 0)
        read = max(0, row.get("teacher_tokens", 0) - taught)
        tokens = pace[name] * row["train_tokens"] + taught + read / 3
        out[name] = tokens / known[first]["train_tokens"]
    return out


# -----------------------------------------------------------------------------
# Views


def view(found: Comparison, cost: dict[str, float]) -> View:
    """A line a row: both comparisons, lowest first, and what it costs. Empty where there is none."""
    if not found.best:
        return View([])
    apart = [holm({n: d.p for n, d in of.items() if not math.isnan(d.p)}) for of in (found.best, found.same)]
    head = ["", "at its best", "95%", "Holm", "at the same places", "95%", "Holm", "cost"]
    lines = []
    for name in found.names:
        line = [name]
        for of, differ in zip((found.best, found.same), apart):
            d = of.get(name)
            line += (
                [*numbers(d), ("ahead" if d.mean < 0 else "behind") * (name in differ)] if d else ["-"] * 3
            )
        lines.append([*line, f"{cost[name]:.2f}" if name in cost else "-"])
    note = NOTE.format(first=found.first, places=found.places, near=math.exp(NEAR) - 1)
    return View([table(head, lines), note])


def numbers(d: Estimate) -> list[str]:
    """A ratio and its interval, as text."""
    at, low, high = ends_of(d)
    return [f"{at:.3f}", "-" if math.isnan(low) else f"{low:.3f} to {high:.3f}"]


def ends_of(d: Estimate) -> tuple[float, float, float]:
    """A ratio, and the ends of its interval; inf where one is too large for a number."""
    with np.errstate(over="ignore"):
        at, low, high = np.exp([d.mean, d.mean - d.half, d.mean + d.half])
    return float(at), float(low), float(high)


NOTE = (
    "Perplexity over that of {first}. At its best: each row at the best point of its own search, test split; "
    "the interval has the spread over seeds and the error of both searches. At the same places: the {places} "
    "shared points of the search where {first} is within {near:.0%} of its best, validation split, one seed; "
    "the interval has the spread over these points; a row with a constant of its own has none. Heads with "
    "exact zeros have PPL_eps there. Holm: apart after the correction for all rows, at 5%. Cost: the time of "
    "training over that of {first}, with a teacher's."
)


def forest(found: Comparison) -> "Figure":
    """A line a row: at its best (filled) and at the same places (diamonds), with their intervals."""
    edge = 1.1  # an arrow there stands for what lies beyond
    names = found.names[::-1]
    size = (7, 0.8 + 0.26 * len(names))
    fig, ax = figures.pyplot().subplots(figsize=size, layout="constrained")
    ax.axvline(1, color="0.6", lw=1)
    kinds = (
        (found.best, "tab:blue", "o", 0.15, "each at its best: test, fresh seeds"),
        (found.same, "tab:orange", "D", -0.15, "all at the same places: validation, one seed"),
    )
    for of, colour, marker, lift, label in kinds:
        ax.plot([], [], color=colour, marker=marker, ls="", ms=4, label=label)
        for y, name in enumerate(names):
            if name not in of:
                continue
            at, low, high = ends_of(of[name])
            if at > edge:
                ax.plot(edge, y + lift, color=colour, marker=">", ms=5)
                place = dict(textcoords="offset points", ha="right", va="center", fontsize=6)
                ax.annotate(f"{at:.2f}", (edge, y + lift), (-6, 0), color=colour, **place)
            else:
                ends = [[at - low], [high - at]]
                ax.errorbar(at, y + lift, xerr=ends, color=colour, marker=marker, ms=3.5, lw=1)
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(-0.7, len(names) - 0.3)
    ax.set_xlim(min(0.94, ax.get_xlim()[0]), edge + 0.005)
    ax.set_xlabel(f"perplexity over that of {found.first}")
    fig.legend(loc="outside lower center", ncols=2, frameon=False)
    return fig
