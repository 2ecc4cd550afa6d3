"""Views of rows: cells, tables as Markdown, CSV, and what a terminal shows. None is ever read back."""

import csv
import io
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tabulate import tabulate

from common.files import beside, replacing
from evaluate.columns import Column
from evaluate.names import file_stem
from evaluate.statistics import student_interval
from evaluate.store import Row


def problems(rows: list[Row]) -> list[str]:
    return [f"{r['name']} could not be evaluated: {r['problem']}" for r in rows if "problem" in r]


def mean(values: list[float]) -> str:
    """The mean and, where there are several seeds, its 95% interval over them: two digits of the interval,
    and as many places of the mean."""
    if not values:
        return "-"
    middle, half = statistics.fmean(values), student_interval(values)
    if not math.isfinite(half) or half <= 1e-9 * abs(middle):  # one value, but for the last digits
        return f"{middle:.4g}"
    places = max(0, 1 - math.floor(math.log10(half)))
    return f"{middle:.{places}f} ± {half:.{places}f}"


# -----------------------------------------------------------------------------
# Cells


def number(value: float, form: str) -> str:
    """`value` in a cell: "-" for nan, which says that there is none."""
    if math.isnan(value):
        return "-"
    return format(value, form) if math.isfinite(value) else "inf"


def cells(rows: list[Row], columns: tuple[Column, ...]) -> list[list[str]]:
    """The table's cells, a list a row, the row's name first.

    A text metric shows its distance to human; a star stands where the row has <key>_best (summary.marks).
    A row with a problem says so.
    """
    human = next((r for r in rows if r["name"] == "human"), {})
    out = [[r["name"] + (f" ({r['problem']})" if "problem" in r else "")] for r in rows]
    for column in columns:
        for row, line in zip(rows, out):
            value = row.get(column.key, math.nan)
            cell = number(value, column.form)
            far = value - human.get(column.key, math.nan)
            if column.best == "human" and row is not human and not math.isnan(far):
                cell += f" ({format(far, '+' + column.form)})"
            if row.get(column.key + "_best"):
                cell += " *"
            line.append(cell)
    return out


def with_intervals(summary: list[Row], columns: tuple[Column, ...]) -> list[list[str]]:
    """The cells of the summary, an interval behind each mean."""
    body = cells(summary, columns)
    for line, row in zip(body, summary):
        for i, c in enumerate(columns, 1):
            ci = row.get(c.key + "_ci", math.nan)
            if math.isfinite(ci):
                mean, *rest = line[i].split(" ")
                line[i] = " ".join([mean, "±", format(ci, c.form), *rest])
    return body


# -----------------------------------------------------------------------------
# Views


class Grid(NamedTuple):
    """A table: its header, and the cells of each line. `style`: one of tabulate's, or "numbers": all columns
    but the first are aligned to the right."""

    head: Sequence[str]
    lines: list[list[str]]
    style: str = "github"
    about: Sequence[str] = ()  # what each column but the first is, where the grid itself knows it
    best: Sequence[str] = ()  # which of its values is the best, see Column

    @classmethod
    def of_columns(cls, columns: tuple[Column, ...], lines: list[list[str]]) -> "Grid":
        return cls(
            ["", *(c.title for c in columns)],
            lines,
            "numbers",
            [c.what for c in columns],
            [c.best for c in columns],
        )

    @property
    def markdown(self) -> str:
        """The table as Markdown, its columns aligned in the source too."""
        if self.style != "numbers":
            return tabulate(self.lines, self.head, tablefmt=self.style, disable_numparse=True)
        width = [max(map(len, cells)) for cells in zip(self.head, *self.lines)]

        def bars(line: Sequence[str]) -> str:
            numbers = [cell.rjust(w) for cell, w in zip(line[1:], width[1:])]
            return "| " + " | ".join([line[0].ljust(width[0]), *numbers]) + " |"

        rule = bars(["-" * width[0], *("-" * (w - 1) + ":" for w in width[1:])])
        return "\n".join([bars(self.head), rule, *map(bars, self.lines)])

    @property
    def turned(self) -> "Grid":
        """The same table with a line for each column."""
        (_, *names), *columns = zip(self.head, *self.lines)
        return self._replace(head=["", *names], lines=[[*column] for column in columns])


class View(NamedTuple):
    """A table as it is read: by people, and by a spreadsheet."""

    parts: Sequence[Grid | str | list[str]]  # tables, paragraphs and lists of lines; empty ones are left out
    sheet: str = ""  # CSV; "" where there is none

    @property
    def markdown(self) -> str:
        """The parts with an empty line between two."""
        texts = [
            p.markdown if isinstance(p, Grid) else p if isinstance(p, str) else "\n".join(p)
            for p in self.parts
        ]
        return "\n\n".join(text for text in texts if text) + "\n"

    def fitting(self, width: int) -> "View":
        """The view, each table that is wider than so many characters on its side if that is narrower."""

        def fitting(grid: Grid) -> Grid:
            wide, turned = (max(map(len, g.markdown.splitlines())) for g in (grid, grid.turned))
            return grid.turned if wide > width and turned < wide else grid

        return self._replace(parts=[fitting(p) if isinstance(p, Grid) else p for p in self.parts])

    @property
    def grids(self) -> list[Grid]:
        return [part for part in self.parts if isinstance(part, Grid)]

    @property
    def notes(self) -> list[str]:
        """The lines that are no table."""
        texts = [[p] if isinstance(p, str) else p for p in self.parts if not isinstance(p, Grid)]
        return [line for lines in texts for line in lines if line]

    def write(self, out: Path) -> None:
        """OUT.md and OUT.csv, each whole or not at all."""
        for end, text in ((".md", self.markdown), (".csv", self.sheet)):
            if text:
                with replacing(beside(out, end)) as file:
                    file.write(text.encode())


def samples_file(out: Path, name: str) -> Path:
    """Where the texts of a row are, one JSON string a line."""
    return beside(out, ".samples") / f"{file_stem(name)}.jsonl"


def read_texts(path: Path) -> list[str]:
    """The texts of a file of samples.

    A line ends at a newline alone: str.splitlines would also split a text at its U+2028.
    """
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def csv_text(rows: list[list[Any]]) -> str:
    """CSV of `rows`. Text that a spreadsheet would run as a formula gets a ' in front, a number does not."""

    def safe(value: Any) -> Any:
        formula = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
        return "'" + value if formula else value

    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([safe(v) for v in row] for row in rows)
    return text.getvalue()


def sheet_of(summary: list[Row], columns: tuple[Column, ...]) -> str:
    """The summary as CSV, with each seed's value and the differences to the first row."""
    keys = []
    for c in columns:
        compared = ("_ci", "_diff", "_diff_ci") if c.best else ()
        keys += [c.key, *(c.key + end for end in (*compared, "_seeds"))]

    def cell(row: Row, key: str) -> Any:
        value = row.get(key, "")
        return " ".join(map(str, value)) if isinstance(value, list) else value

    lines = [[r["name"], *(cell(r, k) for k in ("seeds", *keys))] for r in summary]
    return csv_text([["name", "seeds", *keys], *lines])
