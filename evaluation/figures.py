"""Figures of tables, as PNG and SVG, through matplotlib: `draw` makes those of a table or of a frontier.

Of table.py's: the learning curve of each head beside softmax and, where the truth is known, its way there.
Of frontier.py's: quality against diversity over temperatures. They need no checkpoint: they are made of
NAME.json, and of NAME.runs.json for a table.
"""

import statistics
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from runtime.errors import UserError
from runtime.files import foreign, read_json, replacing

if TYPE_CHECKING:  # see pyplot
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BASELINE, BASELINE_COLOUR = "baseline", "0.6"
WIDTH = 6  # small multiples side by side


def pyplot() -> ModuleType:
    """matplotlib without a screen; its files are the same for the same numbers.

    Imported here, because that takes a second.
    """
    import matplotlib

    matplotlib.use("Agg")
    # a "$" in a name is one
    matplotlib.rcParams |= {
        "svg.hashsalt": "nanoHeads",
        "font.size": 8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "savefig.dpi": 150,
        "text.parse_math": False,
    }
    import matplotlib.pyplot as plt

    return plt


def write(fig: "Figure", path: Path) -> list[Path]:
    """path.png and path.svg."""
    out = []
    for end, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
        out.append(path.with_name(f"{path.name}.{end}"))
        with replacing(out[-1]) as f:
            fig.savefig(f, format=end, metadata=metadata, bbox_inches="tight")
    pyplot().close(fig)
    return out


def beside(name: Path, end: str) -> Path:
    return name.with_name(name.name + end)


def read(path: Path) -> dict[str, Any]:
    """A table's JSON. UserError or FileNotFoundError if it is none."""
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}: table.py writes NAME.runs.json, frontier.py its NAME.json")
    return read_json(path)


Curves = dict[str, dict[int, list[float]]]  # row -> step -> a value of each seed


def row_of(run: dict[str, Any]) -> str:
    """baseline-grammar-1 -> baseline: the run's name without overlay and seed."""
    return run["name"].rsplit("-", 2)[0]


def curves(rows: list[dict[str, Any]], value: Callable[[dict[str, Any]], float]) -> Curves:
    """`value` of each evaluation in the logs of the runs."""
    out: Curves = defaultdict(lambda: defaultdict(list))
    for run in rows:
        for entry in run["curve"]:
            out[row_of(run)][entry["step"]].append(float(value(entry)))
    return {name: dict(sorted(steps.items())) for name, steps in out.items()}


def band(ax: "Axes", steps: dict[int, list[float]], colour: str, label: str = "") -> None:
    """The mean over seeds, and the range from the lowest to the highest."""
    x, seeds = list(steps), list(steps.values())
    ax.plot(x, list(map(statistics.fmean, seeds)), color=colour, lw=1.2, marker=".", ms=3, label=label)
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


def log_axis(ax: "Axes") -> None:
    """A log scale with plain numbers: the usual ones are mathematics, which are not set here (see pyplot)."""
    from matplotlib.ticker import LogFormatter

    ax.set_yscale("log")
    ax.yaxis.set_major_formatter(LogFormatter())
    ax.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))


def values(steps: dict[int, list[float]]) -> list[float]:
    """All values of a row, of every step and seed."""
    return [v for seeds in steps.values() for v in seeds]


def multiples(data: Curves, path: Path, y: str, log: bool = True) -> list[Path]:
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
            log_axis(ax)
    label = f"training steps; grey: {BASELINE}; bands: lowest to highest seed"
    if log and BASELINE in data:
        lowest = min(min(values(steps)) for steps in data.values())
        axes[0][0].set_ylim(lowest / 1.1, 4 * max(values(data[BASELINE])))
        label += f"; cut at 4 times {BASELINE}'s highest"
    fig.supxlabel(label)
    fig.supylabel(y)
    return write(fig, path)


def table_figures(name: Path) -> list[Path]:
    """The figures of a table, of its runs that trained from scratch; none if their logs are not in it.

    The others started from a trained baseline: their steps are not the same ones.
    """
    named = {run for row in read(beside(name, ".json"))["rows"] for run in row["runs"]}
    rows = [r for r in read(beside(name, ".runs.json"))["rows"] if r["name"] in named and r.get("curve")]
    rows = [r for r in rows if not r["training"]["init_from"]]
    if not rows:
        return []
    out = multiples(curves(rows, lambda e: e["val_ppl_eps"]), beside(name, ".curves"), "validation PPL_eps")
    if "tv" in rows[0]["curve"][0]:
        distances = curves(rows, lambda e: e["tv"])
        title = "total variation distance to the truth"
        out += multiples(distances, beside(name, ".tv"), title, log=False)
        out += masses(rows, beside(name, ".mass"))
        out += bias(rows, beside(name, ".bias"))
    return out


def masses(rows: list[dict[str, Any]], path: Path) -> list[Path]:
    """Where a head puts its mass over training.

    On the observed token and on the valid alternatives, each over the truth's, and on what is forbidden.
    """
    parts = [
        ("observed / its due", "tab:blue", lambda e: e["mass_observed"] / e["true_observed"]),
        ("alternatives / their due", "tab:green", lambda e: e["alternatives"]),
        ("forbidden", "tab:red", lambda e: e["mass_invalid"]),
    ]
    data = [curves(rows, value) for _, _, value in parts]
    fig, axes = panels(list(data[0]), 1.6)
    for ax, name in axes:
        ax.axhline(1, color="0.6", lw=0.8, ls=":")
        for curve, (label, colour, _) in zip(data, parts):
            band(ax, curve[name], colour, label)
    axes[0][0].legend(fontsize=5, frameon=False)
    fig.supxlabel("training steps")
    fig.supylabel("mass")
    return write(fig, path)


def bias(rows: list[dict[str, Any]], path: Path) -> list[Path]:
    """How a head moves the valid alternatives over training.

    Its mass on them over the truth's, by decade of the truth's probability.
    """
    truth = [p for _, p in rows[0]["curve"][0]["alternatives_by_decade"]]
    decades = [d for d, p in enumerate(truth) if p > 0]
    names = list(dict.fromkeys(row_of(r) for r in rows))

    def ratio(entry: dict[str, Any], decade: int) -> float:
        model, true = entry["alternatives_by_decade"][decade]
        return model / true

    data = [curves(rows, partial(ratio, decade=d)) for d in decades]
    colours = pyplot().get_cmap("viridis")([0.95 * i / max(1, len(decades) - 1) for i in range(len(decades))])
    shown = [v for curve in data for steps in curve.values() for v in values(steps) if v > 0]
    powers = range(-6, 7, 2)
    fig, axes = panels(names, 1.6)
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
    return write(fig, path)


def frontier(path: Path) -> list[Path]:
    """The figure of frontier.py's JSON: a curve a row over temperatures, T = 1 marked, and human text."""
    table = read(path)
    rows = [r for r in table["rows"] if r.get("points")]
    human = next((r for r in table["rows"] if r["name"] == "human"), None)
    if not rows or human is None:
        raise UserError(f"{path} has no points: run frontier.py")
    key, title = "bleu", "BLEU against held-out human text"
    if "validity" in human:
        key = title = "validity"
    base = next((r for r in rows if row_of(r) == BASELINE), rows[0])
    others = [r for r in rows if r is not base] or [base]
    names = [row_of(r) for r in others]
    if len(set(names)) < len(names):
        names = [r["name"] for r in others]
    fig, axes = panels(names, 1.8)
    for (ax, _), row in zip(axes, others):
        for r, colour in ((base, BASELINE_COLOUR), (row, "tab:blue")):
            trade_off(ax, [q for q in r["points"] if key in q], key, colour)
        ax.plot(human["self_bleu"], human[key], color="tab:red", marker="*", ms=9, ls="")
    temperatures = [q["temperature"] for q in base["points"]]
    fig.supxlabel(
        f"Self-BLEU (lower: more diverse); temperatures {temperatures[0]:g} to {temperatures[-1]:g}, "
        f"the dot is 1; grey: {row_of(base)}; star: human text"
    )
    fig.supylabel(title)
    return write(fig, path.with_suffix(""))


def trade_off(ax: "Axes", points: list[dict[str, float]], key: str, colour: str) -> None:
    """A curve of `key` over Self-BLEU, with a dot where the temperature is 1."""
    x, y = ([float(q[k]) for q in points] for k in ("self_bleu", key))
    ax.plot(x, y, color=colour, lw=1.2, marker=".", ms=3)
    one = [q for q in points if q["temperature"] == 1]
    ax.plot([q["self_bleu"] for q in one], [q[key] for q in one], color=colour, marker="o", ms=5, ls="")


def draw(name: Path) -> list[Path]:
    """The figures of NAME, a table or a frontier: their files. UserError if it is neither.

    None of a table without learning curves: an older version wrote it, or all its runs started from others.
    """
    points = beside(name, ".json")
    a_table = beside(name, ".runs.json").is_file() or not points.is_file()
    with foreign(name, "the name of a table that table.py or frontier.py wrote"):
        return table_figures(name) if a_table else frontier(points)
