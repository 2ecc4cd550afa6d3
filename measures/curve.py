"""The curve measure: the evaluations in each run's log, for figures and pages of how it learns.

The figures show the learning curve of each head beside softmax and, where the truth is known, the head's way
there; where a text was read several times, what that does (memorisation). A group is the runs of one training
with several seeds, see measures.summary.grouped.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluation.figures import BASELINE, BASELINE_COLOUR, WIDTH, panels, plain_numbers, pyplot, write
from evaluation.metrics import perplexity
from heads import named_head
from measures.measure import Measure, NamedRun, Session, open_runs
from measures.store import Row
from measures.summary import grouped
from measures.views import Grid, View, mean, problems
from runtime.files import beside
from runtime.logs import entries

if TYPE_CHECKING:  # see figures.pyplot
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SMALLEST = 1e-6  # on the logarithmic axes of memorisation: what is less is drawn there


def evaluations(out: Path, part: bool = False, sparse: bool = False) -> list[dict[str, Any]]:
    """The entries that evaluations of the whole validation split wrote: one of a part cannot be compared with
    them. `part`: those of the part (--eval_windows), which all evaluations of a run share, by what judges
    them: the perplexity, and PPL_eps of a `sparse` head."""
    evaluated = [e for e in entries(out) if "val_nll" in e]
    if not part:
        return [e for e in evaluated if "val_windows" not in e]
    plain = [math.log(float(e["val_ppl_eps"])) if sparse else float(e["val_nll"]) for e in evaluated]
    nll = [float(e.get("val_nll_windows", value)) for e, value in zip(evaluated, plain)]  # the last has both
    return [e | {"val_nll": value, "val_ppl": perplexity(value, 1)} for e, value in zip(evaluated, nll)]


@dataclass
class CurveConfig:
    # fmt: off
    checkpoints: list[str]          # [NAME=]RUN ...: out folders of training runs
    part: bool = False              # the evaluations on a part of the split, of runs with --eval_windows
    out: str = ""                   # writes OUT.jsonl, OUT.md, and OUT.png and others that begin with OUT
    # fmt: on


class CurveSession(Session):
    def __init__(self, c: CurveConfig):
        self.subjects: Sequence[NamedRun] = open_runs(c.checkpoints)
        self.settings: dict[str, Any] = {"part": c.part}
        self.part = c.part

    def whole(self, row: Row) -> bool:
        """Whether no evaluation came after those of a kept row: its checkpoint may be an early one."""
        (run,) = (run for run in self.subjects if run.name == row["name"])
        return last_step(self.numbers(run)) <= last_step(row)

    def numbers(self, subject: NamedRun) -> Row:
        c = subject.ckpt.config
        sparse = self.part and named_head(c["head"], c["vocab_size"], c["head_args"]).sparse
        return {"curve": evaluations(subject.ckpt.path.parent, self.part, sparse)}


def last_step(row: Row) -> int:
    return max((e["step"] for e in row["curve"]), default=0)


class CurveMeasure(Measure):
    name, config, session = "curve", CurveConfig, CurveSession

    def check(self, c: CurveConfig, wanted: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {"part": c.part}

    def view(self, rows: list[Row]) -> View:
        """Validation perplexity at each evaluation: mean over the seeds of a training, and that of each."""
        lines = []
        for name, runs in grouped(row for row in rows if "curve" in row).items():
            for step, seeds in curves({name: runs}, itemgetter("val_ppl"))[name].items():
                each = ", ".join(f"{value:.2f}" for value in seeds)
                lines.append([name, str(step), str(len(seeds)), mean(seeds), each])
        header = ["", "step", "seeds", "validation perplexity", "of each seed"]
        note = "± is half of the 95% interval over the seeds, by Student's t."
        return View([Grid(header, lines), note, *problems(rows)])

    def draw(self, rows: list[Row], out: Path) -> list[Path]:
        """OUT.png and others of runs that say that they trained from scratch, none without such. Others
        started from a trained baseline: their steps are not the same ones. One evaluation is no curve."""
        trained = [row for row in rows if {"curve", "training"} <= row.keys()]
        scratch = [row for row in trained if not row["training"]["init_from"]]
        groups = grouped(row for row in scratch if len(row["curve"]) > 1)
        drawn = learning(groups) if groups else ()
        return [file for end, fig in drawn for file in write(fig, beside(out, end))]


# -----------------------------------------------------------------------------
# Learning curves

Groups = dict[str, list[Row]]
Steps = dict[float, list[float]]  # step, or another measure of time -> a value of each seed
Curves = dict[str, Steps]  # by group


def curves(
    groups: Groups,
    value: Callable[[dict[str, Any]], float],
    at: Callable[[Row, int], float] = lambda run, step: step,
) -> Curves:
    """`value` of each evaluation in the logs of the runs; `at`: what stands for a step of a run."""
    out: Curves = {}
    for name, runs in groups.items():
        steps: Steps = defaultdict(list)
        for run in runs:
            for entry in run["curve"]:
                if (number := value(entry)) is not None:  # null in some committed rows
                    steps[at(run, entry["step"])].append(float(number))
        out[name] = dict(sorted(steps.items()))
    return out


def band(ax: "Axes", steps: Steps, colour: str, label: str = "", line: str = "-") -> None:
    """The mean over seeds, and the range from the lowest to the highest."""
    x, seeds = list(steps), list(steps.values())
    means = list(map(statistics.fmean, seeds))
    ax.plot(x, means, color=colour, lw=1.2, ls=line, marker=".", ms=3, label=label)
    ax.fill_between(x, list(map(min, seeds)), list(map(max, seeds)), color=colour, alpha=0.25, lw=0)


def behind(names: Iterable[str]) -> str:
    """What the label says of the grey curves, where there are any."""
    return f"grey: {BASELINE}; " if BASELINE in names else ""


def values(steps: Steps) -> list[float]:
    """All values of a row, of every step and seed."""
    return [v for seeds in steps.values() for v in seeds]


def multiples(data: Curves, y: str, log: bool = True) -> "Figure":
    """One small panel a row, each with the baseline behind it.

    A `log` axis ends at four times the baseline's highest value: one head that is far off would flatten the
    others.
    """
    fig, axes = panels([n for n in data if n != BASELINE] or list(data), 1.6)
    for ax, name in axes:
        if BASELINE in data:
            band(ax, data[BASELINE], BASELINE_COLOUR)
        band(ax, data[name], "tab:blue")
        if log:
            ax.set_yscale("log")
    label = f"training steps; {behind(data)}bands: lowest to highest seed"
    if log and BASELINE in data:
        lowest = min(min(values(steps)) for steps in data.values())
        axes[0][0].set_ylim(lowest / 1.1, 4 * max(values(data[BASELINE])))
        label += f"; cut at 4 times {BASELINE}'s highest"
    if log:
        plain_numbers(axes[0][0])
    fig.supxlabel(label)
    fig.supylabel(y)
    return fig


def learning(groups: Groups) -> Iterator[tuple[str, "Figure"]]:
    """(the end of its file's name, figure) of runs whose `curve` has several evaluations."""
    rows = [run for runs in groups.values() for run in runs]
    if rows[0]["settings"].get("part"):  # PPL_eps at the end is of the whole split
        yield "", multiples(curves(groups, itemgetter("val_ppl")), "validation perplexity of a part")
    else:
        yield "", multiples(curves(groups, itemgetter("val_ppl_eps")), "validation PPL_eps")
    if all("tv" in row["curve"][0] for row in rows):
        distances = curves(groups, itemgetter("tv"))
        yield ".tv", multiples(distances, "total variation distance to the truth", log=False)
        yield ".mass", masses(groups)
        yield ".bias", bias(groups)
    if all("train_nll" in r["curve"][-1] and epochs(r, r["curve"][-1]["step"]) >= 2 for r in rows):
        yield ".memorise", memorisation(groups)


def masses(groups: Groups) -> "Figure":
    """Where a head puts its mass over training.

    On the observed token and on the valid alternatives, each over the truth's, and on what is forbidden.
    """
    parts = [
        ("observed / its due", "tab:blue", lambda e: e["mass_observed"] / e["true_observed"]),
        ("alternatives / their due", "tab:green", lambda e: e["alternatives"]),
        ("forbidden", "tab:red", lambda e: e["mass_invalid"]),
    ]
    data = [curves(groups, value) for _, _, value in parts]
    fig, axes = panels(list(data[0]), 1.6)
    for ax, name in axes:
        ax.axhline(1, color="0.6", lw=0.8, ls=":")
        for curve, (label, colour, _) in zip(data, parts):
            band(ax, curve[name], colour, label)
    axes[0][0].legend(fontsize=5, frameon=False)
    fig.supxlabel("training steps")
    fig.supylabel("mass")
    return fig


def bias(groups: Groups) -> "Figure":
    """How a head moves the valid alternatives over training.

    Its mass on them over the truth's, by decade of the truth's probability.
    """
    first = next(iter(groups.values()))[0]
    decades = [d for d, (_, p) in enumerate(first["curve"][0]["alternatives_by_decade"]) if p > 0]

    def ratio(entry: dict[str, Any], decade: int) -> float:
        model, true = entry["alternatives_by_decade"][decade]
        return model / true

    data = [curves(groups, partial(ratio, decade=d)) for d in decades]
    colours = pyplot().get_cmap("viridis")([0.95 * i / max(1, len(decades) - 1) for i in range(len(decades))])
    shown = [v for curve in data for steps in curve.values() for v in values(steps) if v > 0]
    powers = range(-6, 7, 2)
    fig, axes = panels(list(groups), 1.6)
    for ax, name in axes:
        ax.axhline(1, color="tab:red", lw=0.8, ls=":")
        for curve, colour, d in zip(data, colours, decades):
            band(ax, curve[name], colour, f"p in (1e-{d + 1}, 1e-{d}]")
        ax.set_yscale("log")
        ax.set_yticks([2.0**k for k in powers], [f"1/{2**-k}" if k < 0 else str(2**k) for k in powers])
        ax.minorticks_off()
    for ax, _ in axes:  # in the end: set_yticks of one panel widens all
        ax.set_ylim(min(shown) / 1.3, max(shown) * 1.3)
    axes[0][0].legend(fontsize=5, frameon=False)
    fig.supxlabel("training steps")
    fig.supylabel("model's mass on valid alternatives / the truth's")
    return fig


# -----------------------------------------------------------------------------
# Memorisation: runs that read a text several times, and whose logs say how far they are from the truth there

# what is drawn of each head, and whether its axis is logarithmic
MEASURES = (
    ("kl_truth_model", "KL(truth, model)", True),
    ("alternatives_q50", "alternatives / their\ndue: median", False),
    ("alternatives_q05", "alternatives / their\ndue: 5% quantile", True),
    ("mass_invalid", "mass on\nforbidden words", True),
)


def epochs(run: Row, step: int) -> float:
    """How often a run has read its train split (data.batches.Windows) after `step` steps."""
    c = run["training"]
    return step * c["batch_size"] / ((c["train_tokens"] - 1) // c["block_size"])


def memorisation(groups: Groups) -> "Figure":
    """What reading a text many times does to each head, on that text and on held-out text.

    A column of panels a head, with the baseline behind it; and below them all heads at equal fit.
    """
    heads = [n for n in groups if n != BASELINE] or list(groups)
    blocks = -(-len(heads) // WIDTH)
    wide = -(-len(heads) // blocks)
    fig = pyplot().figure(figsize=(max(6, 2 * wide), 6.2 * blocks + 3.5), layout="constrained")
    *parts, last = fig.subfigures(blocks + 1, 1, height_ratios=[6.2] * blocks + [3.5])
    grids = [part.subplots(len(MEASURES), wide, sharex=True, squeeze=False) for part in parts]
    columns = [column for grid in grids for column in grid.T]
    for unused in columns[len(heads) :]:
        for ax in unused:
            ax.axis("off")
    for (key, label, log), axes in zip(MEASURES, zip(*columns[: len(heads)])):
        held_out, train = (curves(groups, itemgetter(k), epochs) for k in (key, f"train_{key}"))
        for ax, name in zip(axes, heads):
            held_out_and_train(ax, held_out, train, name, log)
        low, high = min(ax.get_ylim()[0] for ax in axes), max(ax.get_ylim()[1] for ax in axes)
        for i, ax in enumerate(axes):
            ax.set_ylim(low, high)
            if log:
                plain_numbers(ax)
            ax.tick_params(which="both", labelleft=i % wide == 0)
            ax.set_ylabel(label if i % wide == 0 else "")
    for column, name in zip(columns, heads):
        column[0].set_title(name, fontsize=8)
    columns[0][0].legend(fontsize=5, frameon=False)
    for part in parts:
        part.supxlabel(f"epochs; {behind(groups)}bands: lowest to highest seed", fontsize=8)
    equal_fit(last.subplots(), groups)
    return fig


def held_out_and_train(ax: "Axes", held_out: Curves, train: Curves, name: str, log: bool) -> None:
    """A row on held-out and on train text, the baseline behind it."""
    for row, colours, labels in (
        (BASELINE, (BASELINE_COLOUR, BASELINE_COLOUR), ("", "")),
        (name, ("tab:blue", "tab:orange"), ("held-out text", "train text")),
    ):
        for data, colour, label, line in zip((held_out, train), colours, labels, ("-", "--")):
            band(ax, finite(data.get(row, {}), log), colour, label, line)
    ax.set_xscale("log", base=4)
    ax.xaxis.set_major_formatter("{x:g}")
    if log:
        ax.set_yscale("log")
    else:
        ax.axhline(1, color="0.6", lw=0.8, ls=":")


def finite(steps: Steps, log: bool = True) -> Steps:
    """The steps at which every seed has a number: a KL is infinite where a head rules out a valid token."""
    known = {x: seeds for x, seeds in steps.items() if all(map(math.isfinite, seeds))}
    return {x: [max(v, SMALLEST) for v in seeds] for x, seeds in known.items()} if log else known


def equal_fit(ax: "Axes", groups: Groups) -> None:
    """Each head's way over the evaluations: its divergence on held-out text at its NLL of the train text."""
    fit, far = (curves(groups, itemgetter(k), epochs) for k in ("train_nll", "kl_truth_model"))
    colours = pyplot().get_cmap("tab10" if len(fit) <= 10 else "tab20").colors
    for i, name in enumerate(fit):
        at = [x for x in fit[name] if x in finite(fit[name]) and x in finite(far[name])]
        x, y = ([statistics.fmean(data[name][k]) for k in at] for data in (fit, far))
        colour = "black" if name == BASELINE else colours[i % len(colours)]
        ax.plot(x, y, color=colour, lw=1.2, marker=".", ms=3, label=name)
        ax.plot(x[-1:], y[-1:], color=colour, marker="o", ms=5, ls="")
    truth = next(iter(groups.values()))[0]["curve"][-1]["train_true_nll"]
    ax.axvline(truth, color="tab:red", lw=0.8, ls=":", label="the truth's own NLL")
    ax.invert_xaxis()
    ax.set_yscale("log")
    plain_numbers(ax)
    ax.set_xlabel("NLL of the train text, nats a token, falling; a point an evaluation, the dot is the last")
    ax.set_ylabel("KL(truth, model)\non held-out text")
    ax.set_title("at equal fit", fontsize=8)
    ax.legend(fontsize=6, frameon=False, bbox_to_anchor=(1, 1), loc="upper left")
