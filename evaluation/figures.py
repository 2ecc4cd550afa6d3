"""Figures of rows, through matplotlib. They need no checkpoint: they are made of what the rows hold.

The curve measure's rows give the learning curve of each head beside softmax and, where the truth is known,
the head's way there; where a text was read several times, they show what that does (memorisation). The
frontier measure's rows give quality against diversity over temperatures, the text measure's calibration.
A group is the runs of one training with several seeds, see measures.views.grouped.
"""

import io
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import itemgetter
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from measures.store import Row
from runtime.files import beside, replacing

if TYPE_CHECKING:  # see pyplot
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BASELINE, BASELINE_COLOUR = "baseline", "0.6"
WIDTH = 6  # small multiples side by side
SMALLEST = 1e-6  # on the logarithmic axes of memorisation: what is less is drawn there


def pyplot() -> ModuleType:
    """matplotlib without a screen; its files are the same for the same numbers.

    Imported here, because that takes a second.
    """
    import matplotlib

    matplotlib.use("Agg")
    # a "$" in a name is one
    matplotlib.rcParams |= {
        "font.size": 8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "savefig.dpi": 150,
        "text.parse_math": False,
    }
    import matplotlib.pyplot as plt

    return plt


def write(fig: "Figure", path: Path) -> list[Path]:
    """path.png, in a list as a measure's `draw` gives its files. It has 48 colours: a third of the bytes."""
    from PIL import Image

    drawn, file = io.BytesIO(), beside(path, ".png")
    fig.savefig(drawn, format="png", metadata={"Software": None}, bbox_inches="tight")
    pyplot().close(fig)
    with Image.open(drawn) as image, replacing(file) as out:
        few = image.convert("RGB").quantize(48, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        few.save(out, format="png", optimize=True)
    return [file]


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
                steps[at(run, entry["step"])].append(float(value(entry)))
        out[name] = dict(sorted(steps.items()))
    return out


def band(ax: "Axes", steps: Steps, colour: str, label: str = "", line: str = "-") -> None:
    """The mean over seeds, and the range from the lowest to the highest."""
    x, seeds = list(steps), list(steps.values())
    means = list(map(statistics.fmean, seeds))
    ax.plot(x, means, color=colour, lw=1.2, ls=line, marker=".", ms=3, label=label)
    ax.fill_between(x, list(map(min, seeds)), list(map(max, seeds)), color=colour, alpha=0.25, lw=0)


def panels(names: list[str], height: float) -> tuple["Figure", list[tuple["Axes", str]]]:
    """A figure of a small panel for each name, and [(panel, name)]."""
    wide = min(WIDTH, len(names))
    high = -(-len(names) // wide)
    fig, axes = pyplot().subplots(
        high,
        wide,
        figsize=(max(5, 2 * wide), height * high + 0.4),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for ax in axes.flat[len(names) :]:
        ax.axis("off")
    for ax, name in zip(axes.flat, names):
        ax.set_title(name, fontsize=8)
    return fig, list(zip(axes.flat, names))


def behind(names: Iterable[str]) -> str:
    """What the label says of the grey curves, where there are any."""
    return f"grey: {BASELINE}; " if BASELINE in names else ""


def values(steps: Steps) -> list[float]:
    """All values of a row, of every step and seed."""
    return [v for seeds in steps.values() for v in seeds]


def plain_numbers(ax: "Axes") -> None:
    """Labels a logarithmic axis, whose limits are set, with plain numbers: matplotlib would label it with
    powers in TeX, which pyplot() turns off."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = ax.get_ylim()
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 300 * low else (1,)))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_formatter(NullFormatter())


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
    yield "", multiples(curves(groups, itemgetter("val_ppl_eps")), "validation PPL_eps")
    rows = [run for runs in groups.values() for run in runs]
    if "tv" in rows[0]["curve"][0]:
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


# -----------------------------------------------------------------------------
# The frontier


def frontier(groups: Groups, human: Row) -> "Figure":
    """A panel a group: a curve a seed over temperatures, T = 1 marked, and human text.

    The row named baseline, else the first, stands behind the others.
    """
    key, title = "bleu", "BLEU against held-out human text"
    if "validity" in human:
        key = title = "validity"
    base = BASELINE if BASELINE in groups else next(iter(groups))
    fig, axes = panels([name for name in groups if name != base] or [base], 1.8)
    for ax, name in axes:
        for runs, colour in ((groups[base], BASELINE_COLOUR), (groups[name], "tab:blue")):
            for run in runs:
                trade_off(ax, [q for q in run["points"] if key in q], key, colour)
        ax.plot(human["self_bleu"], human[key], color="tab:red", marker="*", ms=9, ls="")
    temperatures = [q["temperature"] for q in groups[base][0]["points"]]
    fig.supxlabel(
        f"Self-BLEU (lower: more diverse); temperatures {temperatures[0]:g} to {temperatures[-1]:g}, "
        f"the dot is 1; grey: {base}; star: human text"
    )
    fig.supylabel(title)
    return fig


def trade_off(ax: "Axes", points: list[dict[str, float]], key: str, colour: str) -> None:
    """A curve of `key` over Self-BLEU, with a dot where the temperature is 1."""
    x, y = ([float(q[k]) for q in points] for k in ("self_bleu", key))
    ax.plot(x, y, color=colour, lw=1.2, marker=".", ms=3)
    one = [q for q in points if q["temperature"] == 1]
    ax.plot([q["self_bleu"] for q in one], [q[key] for q in one], color=colour, marker="o", ms=5, ls="")


# -----------------------------------------------------------------------------
# Calibration


def calibration(rows: list[Row]) -> "Figure":
    """The expected calibration error of each row of a summary, with its interval where there are several
    seeds."""
    fig, ax = pyplot().subplots(figsize=(6, 0.18 * len(rows) + 0.6), layout="constrained")
    for at, row in enumerate(rows):
        half = row.get("ece_ci", math.nan)
        ax.errorbar(
            row["ece"], at, xerr=half if math.isfinite(half) else None, color="tab:blue", marker="o", ms=3
        )
    ax.set_yticks(range(len(rows)), [r["name"] for r in rows])
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_xlim(left=0)
    ax.set_xlabel("expected calibration error; 0 is calibrated")
    return fig
