"""The frontier measure: text quality against diversity over sampling temperatures, or over a cut's values.

A temperature trades quality for diversity, so two heads compare by their curves, not by one point of each
(Caccia et al. 2020, arXiv 1811.02549). Diversity is Self-BLEU. Quality is BLEU against human texts of the
other held-out split, with a --scorer MAUVE against them or, for the language whose truth is known
(data/grammar), the share of valid tokens. The human continuations of the same prompts are the standard.
Texts, prompts and their number are the text measure's.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluation import diversity, figures
from evaluation.decoding import AS_SCORED, Decoding
from evaluation.scorer import Judge, mauve_version, open_scorer, scorer_digest
from evaluation.settings import TextsConfig, of_run, settings
from evaluation.texts import cut, decode, measured, sample_texts
from measures.checks import check_planned, check_text
from measures.measure import Measure, NamedRun, Session
from measures.store import Row
from measures.summary import grouped
from measures.text_numbers import open_all, other_texts, validity
from measures.views import Grid, View, problems
from model import context
from runtime.checkpoint import load_model
from runtime.device import get_dtype
from runtime.errors import UserError
from runtime.packages import not_installed
from runtime.values import typed

if TYPE_CHECKING:  # see figures.pyplot
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KEYS = {"self_bleu": "Self-BLEU", "bleu": "BLEU", "distinct_4": "Distinct-4", "seq_rep_4": "seq-rep-4"}
KEYS |= {"validity": "validity", "mauve": "MAUVE"}
KINDS = {f.name: f.type for f in fields(Decoding)}
TEMPERATURES = [0.5, 0.75, 1.0, 1.25, 1.5]


@dataclass(frozen=True)
class FrontierConfig(TextsConfig):
    # fmt: off
    # the frontier
    over: str = "temperature"       # what differs from point to point: temperature, top_k, min_p, ...
    values: list[int | float] = field(default_factory=list)  # its values; empty: temperatures .5 to 1.5
    scorer: str = ""                # a run, or a folder of transformers: MAUVE by its hidden states, too
    out: str = ""                   # writes OUT.jsonl, OUT.md and OUT.png
    #                                 points of unchanged checkpoints in it are kept
    # fmt: on

    @property
    def points(self) -> list[dict[str, Any]]:
        """What each point has of its own: {over: value}. UserError for a value that it cannot have."""
        if self.over not in KINDS:
            raise UserError(f"over = {self.over!r}: give one of {', '.join(KINDS)}")
        if not self.values and self.over != "temperature":
            raise UserError(f"over = {self.over!r}: give its values, too: --values=...")
        if (fixed := getattr(self, self.over)) != getattr(AS_SCORED, self.over):
            raise UserError(f"{self.over} = {fixed}: the frontier is over it; give --values=... instead")
        return [{self.over: typed(self.over, v, KINDS[self.over])} for v in self.values or TEMPERATURES]


class FrontierSession(Session):
    """The runs that are asked for, and the human texts that theirs are compared with."""

    reference_names = ("human",)

    def __init__(self, c: FrontierConfig):
        """UserError for all that cannot be measured, before any work."""
        self.c = c
        runs, self.s, self.data, self.device = open_all(c)
        self.subjects: Sequence[NamedRun] = runs
        self.human = other_texts(self.data, self.s)
        self.settings = settings_of(vars(self.s), c)
        self.judge: Judge | None = None
        if c.scorer:
            scorer = open_scorer(c.scorer, self.device)
            self.judge = Judge(scorer, self.settings["scorer"], self.s.words, lambda: self.human)

    def references(self) -> list[Row]:
        return [{"name": "human", **self._point(self.data.prompts.human), **self._scorer()}]

    def numbers(self, subject: NamedRun) -> Row:
        """ "points", one for each of `values`."""
        model, ckpt = load_model(subject.path, device=self.device, dtype=get_dtype(self.s.dtype))
        points = []
        for point in self.c.points:
            s = replace(of_run(self.s, ckpt.config), **point)
            title = f"{subject.name} at {point[self.c.over]:g}"
            new = sample_texts(model, self.data.prompts.prompt, s, self.device, title)
            points.append({**point, **self._point(new)})
        return {"points": points, **self._scorer()}

    def _scorer(self) -> Row:
        return {"scorer": self.judge.origin} if self.judge else {}

    def _point(self, new: np.ndarray) -> dict[str, float]:
        """Diversity and quality of the sampled ids (n, new_tokens).

        What there is none of (validity, where no document starts) is left out.
        """
        data, s = self.data, self.s
        texts = [cut(t, s.words) for t in decode(data.tokenizer, data.prompts.prompt, new, s)]
        values = measured(quality, texts, self.human) | validity(data, new)
        if self.judge:
            values["mauve"] = self.judge.numbers(texts, [])["mauve"]
        return {k: v for k, v in values.items() if math.isfinite(v)}


def quality(texts: list[str], human: list[str]) -> dict[str, float]:
    """Diversity of the texts, and their quality beside human ones."""
    words = [t.split() for t in texts]
    return {
        "self_bleu": diversity.self_bleu_sacre(texts),
        "bleu": diversity.bleu_sacre(texts, human),
        "distinct_4": diversity.distinct_n(words),
        "seq_rep_4": diversity.seq_rep_n(words),
    }


def settings_of(text_settings: dict[str, Any], c: FrontierConfig) -> dict[str, Any]:
    """What two rows must share: the text measure's settings, with "temperatures" or "min_ps" or ..."""
    shared = {k: v for k, v in text_settings.items() if k not in (c.over, "stride")}
    if c.scorer:
        if not mauve_version():
            raise UserError(f"scorer = {c.scorer}: {not_installed('mauve')}")
        shared["scorer"] = scorer_digest(c.scorer)
    return shared | {f"{c.over}s": [point[c.over] for point in c.points]}


def varied(rows: list[Row]) -> str:
    """What differs from point to point of a row."""
    return next((key for key in KINDS if f"{key}s" in rows[0]["settings"]), "temperature")


class FrontierMeasure(Measure):
    name, config, session = "frontier", FrontierConfig, FrontierSession

    def check(self, c: FrontierConfig, wanted: Sequence[dict[str, Any]]) -> dict[str, Any]:
        for config in wanted:
            check_text(Path(config["out_dir"]), config["dataset"])
        check_planned(wanted)
        known = vars(settings(c, min(context(config) for config in wanted)))
        return {k: v for k, v in settings_of(known, c).items() if v not in ("", "auto") or k == "scorer"}

    def view(self, rows: list[Row]) -> View:
        """A line a run and point."""
        lines, over = [], varied(rows)
        for row in rows:
            points = row.get("points", [row] if row.get("reference") else [])
            for p in points:
                cells = (f"{p[k]:.4g}" if k in p else "-" for k in KEYS)
                lines.append([row["name"], f"{p[over]:g}" if over in p else "", *cells])
        scorers = {r["scorer"]["name"]: r["scorer"]["sha256"][:12] for r in rows if "scorer" in r}
        note = [f"MAUVE is by the scorer {name} (weights {digest})." for name, digest in scorers.items()]
        return View([Grid(["", over, *KEYS.values()], lines), *note, *problems(rows)])

    def draw(self, rows: list[Row], out: Path) -> list[Path]:
        """OUT.png: a panel a row."""
        groups = grouped(r for r in rows if r.get("points"))
        human = next((r for r in rows if r["name"] == "human"), {})
        return figures.write(frontier(groups, human, varied(rows)), out) if groups else []


def frontier(groups: dict[str, list[Row]], human: Row, over: str) -> "Figure":
    """A panel a group: a curve a seed over the values of `over`, a dot where it does nothing, and human text.

    The row named baseline, else the first, stands behind the others.
    """
    key = next(key for key in ("mauve", "validity", "bleu") if key in human)
    title = {"bleu": "BLEU against held-out human text", "mauve": "MAUVE"}.get(key, key)
    base = figures.BASELINE if figures.BASELINE in groups else next(iter(groups))
    fig, axes = figures.panels([name for name in groups if name != base] or [base], 1.8)
    for ax, name in axes:
        for runs, colour in ((groups[base], figures.BASELINE_COLOUR), (groups[name], "tab:blue")):
            for run in runs:
                trade_off(ax, [q for q in run["points"] if key in q], key, colour, over)
        ax.plot(human["self_bleu"], human[key], color="tab:red", marker="*", ms=9, ls="")
    values, off = [q[over] for q in groups[base][0]["points"]], getattr(AS_SCORED, over)
    fig.supxlabel(
        f"Self-BLEU (lower: more diverse); {over}s {values[0]:g} to {values[-1]:g}, "
        f"the dot is {off:g}; grey: {base}; star: human text"
    )
    fig.supylabel(title)
    return fig


def trade_off(ax: "Axes", points: list[dict[str, float]], key: str, colour: str, over: str) -> None:
    """A curve of `key` over Self-BLEU, with a dot where `over` does nothing."""
    x, y = ([float(q[k]) for q in points] for k in ("self_bleu", key))
    ax.plot(x, y, color=colour, lw=1.2, marker=".", ms=3)
    off = [q for q in points if q[over] == getattr(AS_SCORED, over)]
    ax.plot([q["self_bleu"] for q in off], [q[key] for q in off], color=colour, marker="o", ms=5, ls="")
