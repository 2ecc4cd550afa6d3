"""The curve measure: the evaluations in each run's log, and a figure of each head's beside softmax.

A group is the runs of one training with several seeds, see evaluate.summary.grouped.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from common.log import entries
from evaluate.figures import BASELINE, BASELINE_COLOUR, panels, plain_numbers, write
from evaluate.measure import Measure, NamedRun, Session, open_runs
from evaluate.metrics import perplexity
from evaluate.store import Row
from evaluate.summary import grouped
from evaluate.views import View, mean, problems, table
from heads import named_head

if TYPE_CHECKING:  # see figures.pyplot
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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
    out: str = ""                   # writes OUT.jsonl, OUT.md, and OUT.png or .pdf
    figures: Literal["png", "pdf"] = "png"  # what the figure is written as; a PDF is vectors
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
        c = subject.ckpt.record
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
        return View([table(header, lines), note, problems(rows)])

    def draw(self, rows: list[Row], out: Path) -> list[Path]:
        """OUT.png of runs that say that they trained from scratch, none without such. Others started from a
        trained baseline: their steps are not the same ones. One evaluation is no curve."""
        trained = [row for row in rows if {"curve", "training"} <= row.keys()]
        scratch = [row for row in trained if not row["training"]["init_from"]]
        groups = grouped(row for row in scratch if len(row["curve"]) > 1)
        if not groups:
            return []
        part = scratch[0]["settings"].get("part")  # PPL_eps at the end is of the whole split
        key, y = ("val_ppl", "perplexity of a part") if part else ("val_ppl_eps", "PPL_eps")
        return write(multiples(curves(groups, itemgetter(key)), f"validation {y}"), out)


# -----------------------------------------------------------------------------
# Learning curves

Groups = dict[str, list[Row]]
Steps = dict[int, list[float]]  # step -> a value of each seed
Curves = dict[str, Steps]  # by group


def curves(groups: Groups, value: Callable[[dict[str, Any]], float]) -> Curves:
    """`value` of each evaluation in the logs of the runs."""
    out: Curves = {}
    for name, runs in groups.items():
        steps: Steps = defaultdict(list)
        for run in runs:
            for entry in run["curve"]:
                if (number := value(entry)) is not None:  # null in some committed rows
                    steps[entry["step"]].append(float(number))
        out[name] = dict(sorted(steps.items()))
    return out


def band(ax: "Axes", steps: Steps, colour: str) -> None:
    """The mean over seeds, and the range from the lowest to the highest."""
    x, seeds = list(steps), list(steps.values())
    means = list(map(statistics.fmean, seeds))
    ax.plot(x, means, color=colour, lw=1.2, marker=".", ms=3)
    ax.fill_between(x, list(map(min, seeds)), list(map(max, seeds)), color=colour, alpha=0.25, lw=0)


def multiples(data: Curves, y: str) -> "Figure":
    """One small panel a row, each with the baseline behind it.

    The axis ends at four times the baseline's highest value: one head that is far off would flatten the
    others.
    """
    fig, axes = panels([n for n in data if n != BASELINE] or list(data), 1.6)
    for ax, name in axes:
        if BASELINE in data:
            band(ax, data[BASELINE], BASELINE_COLOUR)
        band(ax, data[name], "tab:blue")
        ax.set_yscale("log")
    label = "training steps; bands: lowest to highest seed"
    if BASELINE in data:
        each = {name: [v for seeds in steps.values() for v in seeds] for name, steps in data.items()}
        axes[0][0].set_ylim(min(map(min, each.values())) / 1.1, 4 * max(each[BASELINE]))
        label += f"; grey: {BASELINE}; cut at 4 times its highest"
    plain_numbers(axes[0][0])
    fig.supxlabel(label)
    fig.supylabel(y)
    return fig
