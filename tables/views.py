"""Tables for people: DataFrames of text, which pandas prints as Markdown, LaTeX and CSV.

None is read back.
"""

import json
import math
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from common.errors import UserError, reading
from common.files import beside, replacing
from tables.columns import Column
from tables.names import file_stem
from tables.statistics import estimate
from tables.store import Row


def mean(values: list[float]) -> str:
    """The mean and, where there are several seeds, its 95% interval over them: two digits of the interval,
    and as many places of the mean."""
    if not values:
        return "-"
    middle, half, _ = estimate(values)
    if not math.isfinite(half) or half <= 1e-9 * abs(middle):  # one value, but for the last digits
        return f"{middle:.4g}"
    places = max(0, 1 - math.floor(math.log10(half)))
    return f"{middle:.{places}f} ± {half:.{places}f}"


def cell(row: Row, column: Column, human: Row) -> str:
    """A row's value: `± half of its interval`, `(distance to human text)`, and * where it may be the best."""
    value, half = (row.get(column.key + end, math.nan) for end in ("", "_ci"))
    if math.isnan(value):
        return "-"
    text = format(value, column.form)
    if math.isfinite(half):
        text += f" ± {half:{column.form}}"
    far = value - human.get(column.key, math.nan)
    if column.best == "human" and row is not human and not math.isnan(far):
        text += f" ({far:+{column.form}})"
    return text + " *" if row.get(column.key + "_best") else text


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> pd.DataFrame:
    """A table of text: the first of each line is the name of its row."""
    return pd.DataFrame([*lines], columns=[*head]).set_index(head[0])


class View(NamedTuple):
    """What people read of rows: tables and paragraphs in their order; empty ones are left out."""

    parts: Sequence[pd.DataFrame | str]
    columns: Sequence[Column] = ()  # of the first table, where it is that of a summary
    summary: Sequence[Row] = ()

    @classmethod
    def of_summary(cls, summary: list[Row], columns: Sequence[Column], *parts: pd.DataFrame | str) -> "View":
        """The table of a summary's rows, a column a title; the `parts`, and what each column is."""
        columns = [c for c in columns if any(c.key in row for row in summary)]
        human = next((row for row in summary if row.get("reference")), {})
        lines = [[row["name"], *(cell(row, c, human) for c in columns)] for row in summary]
        legend = "\n".join(f"- {c.title}: {c.what}" for c in columns)
        return cls([table(["", *(c.title for c in columns)], lines), *parts, legend], columns, summary)

    def only(self, keys: str) -> "View":
        """A summary's view with these columns of its table in place of all, in this order: keys with commas
        between them. UserError for one that it has not."""
        known = {column.key: column for column in self.columns}
        if unknown := [key for key in keys.split(",") if key not in known]:
            raise UserError(f"columns: {unknown[0]!r} is none of {', '.join(known) or 'this table'}")
        return self.of_summary([*self.summary], [known[key] for key in keys.split(",")], *self.parts[1:-1])

    @property
    def tables(self) -> list[pd.DataFrame]:
        return [part for part in self.parts if not isinstance(part, str)]

    @property
    def notes(self) -> list[str]:
        return [part for part in self.parts if isinstance(part, str) and part]

    @property
    def markdown(self) -> str:
        """The parts with an empty line between two."""
        texts = [part if isinstance(part, str) else as_markdown(part) for part in self.parts]
        return "\n\n".join(filter(None, texts)) + "\n"

    @property
    def latex(self) -> str:
        """The tables, in the style of the package booktabs; in bold what is better than the first row, by the
        interval of their difference."""
        better = {c.title: [row.get(f"{c.key}_better", False) for row in self.summary] for c in self.columns}
        bold = [pd.DataFrame(better)] if self.columns else [None]
        tables = [as_latex(table, of) for table, of in zip_longest(self.tables, bold)]
        return "\n".join(["% needs \\usepackage{booktabs}", *tables])

    def fitting(self, width: int) -> "View":
        """The view with each table on its side that is wider than so many characters, if that is narrower."""

        def turned(part: pd.DataFrame) -> pd.DataFrame:
            wide, narrow = (as_markdown(table).index("\n") for table in (part, part.T))
            return part.T if narrow < wide > width else part

        return self._replace(parts=[part if isinstance(part, str) else turned(part) for part in self.parts])

    def write(self, out: Path) -> None:
        """OUT.md, OUT.tex and, of a summary, OUT.csv with all its numbers, each whole or not at all."""
        texts = {".md": self.markdown, ".tex": self.latex}
        if self.columns:
            sheet = pd.DataFrame(self.summary).set_index("name")
            keys = [c.key + end for c in self.columns for end in ("", "_ci", "_diff", "_diff_ci", "_seeds")]
            sheet = sheet[[key for key in ("seeds", *keys) if key in sheet]]
            texts[".csv"] = sheet.map(lambda v: " ".join(map(str, v)) if isinstance(v, list) else v).to_csv()
        for end, text in texts.items():
            with replacing(beside(out, end)) as file:
                file.write(text.encode())


def as_markdown(table: pd.DataFrame) -> str:
    return table.to_markdown(disable_numparse=True, colalign=("left", *["right"] * table.shape[1]))


def as_latex(table: pd.DataFrame, bold: pd.DataFrame | None = None) -> str:
    """`bold`: a mask of the cells behind the rows' names."""
    flat = table.reset_index(names=table.index.name or "")
    style = flat.style.hide(axis=0).format(escape="latex").format_index(escape="latex", axis=1)
    if bold is not None:
        css = bold.reindex(columns=flat.columns, fill_value=False).replace(
            {True: "font-weight: bold", False: ""}
        )
        style = style.apply(lambda _: css, axis=None)
    return style.to_latex(hrules=True, convert_css=True, column_format="l" + "r" * table.shape[1])


# -----------------------------------------------------------------------------
# The texts beside a table


def samples_file(out: Path, name: str) -> Path:
    """Where the texts of a row are, one JSON string a line."""
    return beside(out, ".samples") / f"{file_stem(name)}.jsonl"


def read_texts(path: Path) -> list[str]:
    """The texts of a file of samples. A line ends at a newline alone: str.splitlines would also split a text
    at its U+2028."""
    with reading(path):
        return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def problems(rows: list[Row]) -> str:
    """A line for each row that has no numbers."""
    return "\n".join(f"- {r['name']} could not be evaluated: {r['problem']}" for r in rows if "problem" in r)
