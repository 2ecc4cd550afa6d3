"""The curve measure: the evaluations in each run's log, for figures and pages of how it learns."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluation import figures
from measures.measure import Entry, Subject, entries
from measures.store import Row
from measures.views import View, beside, grouped, paragraphs, table
from runtime.logs import evaluations


@dataclass
class CurveConfig:
    # fmt: off
    checkpoints: list[str]          # [NAME=]RUN ...: out folders of training runs
    out: str = ""                   # writes OUT.jsonl, OUT.md, and OUT.png and others that begin with OUT
    # fmt: on


class CurveSession:
    def __init__(self, c: CurveConfig):
        self.subjects: Sequence[Subject] = entries(c.checkpoints)
        self.settings: dict[str, Any] = {}

    def whole(self, row: Row) -> bool:
        return True

    def references(self) -> list[Row]:
        return []

    def numbers(self, subject: Subject) -> Row:
        assert isinstance(subject, Entry)
        return {"curve": evaluations(subject.ckpt.path.parent)}


class CurveMeasure:
    """See measures.measure.Measure."""

    name, definition, which, config = "curve", 1, "last", CurveConfig

    def check(self, c: CurveConfig, wanted: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {}

    def open(self, c: CurveConfig) -> CurveSession:
        return CurveSession(c)

    def view(self, rows: list[Row]) -> View:
        """Validation perplexity at each evaluation."""
        lines = [
            [row["name"], str(e["step"]), f"{e['val_ppl']:.2f}"] for row in rows for e in row.get("curve", [])
        ]
        return View(paragraphs(table(["", "step", "validation perplexity"], lines)))

    def draw(self, rows: list[Row], out: Path) -> list[Path]:
        """OUT.png and others of runs that trained from scratch, none without such. The others started from a
        trained baseline: their steps are not the same ones. One evaluation is no curve."""
        groups = grouped(r for r in rows if len(r["curve"]) > 1 and not r["training"]["init_from"])
        drawn = figures.learning(groups) if groups else ()
        return [file for end, fig in drawn for file in figures.write(fig, beside(out, end))]
