"""Views of rows: groups of seeds, cells, Markdown, CSV, and what a terminal shows. None is ever read back."""

import csv
import io
import json
import math
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from tabulate import tabulate

from evaluation.columns import Column
from evaluation.intervals import student_interval
from measures.store import Row
from runtime.errors import UserError
from runtime.files import beside, replacing
from runtime.names import file_stem
from runtime.resume import RESUMABLE

# -----------------------------------------------------------------------------
# Groups: the runs of one training with several seeds

# what differs between the seeds of one training, and what follows from it
OF_SEED = {"seed", "name", "teacher", "teacher_sha256", "teacher_weights", "teacher_spent"}
OF_SEED |= {"init_from", "init_weights", "init_spent"} | RESUMABLE - {"max_steps"}


def grouped(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The runs of each training, under the name of its row, in the order in which they came.

    Seeds of one training have one configuration. Where one row name stands for several, their overlays tell
    them apart; where these do not, each run stands by itself under its own name.
    """
    rows = [row for row in rows if not row.get("reference")]
    for label in ("{row}", "{row}-{overlay}"):
        groups: dict[str, list[Row]] = {}
        for row in rows:
            groups.setdefault(label.format_map(row), []).append(row)
        if all(map(one_training, groups.values())):
            return groups
    out: dict[str, list[Row]] = {}
    for name, same in groups.items():
        out |= {name: same} if one_training(same) else {row["name"]: [row] for row in same}
    return out


def one_training(rows: list[Row]) -> bool:
    """Whether these are seeds of one training, each there once."""
    kinds = {
        json.dumps({k: v for k, v in row.get("training", {}).items() if k not in OF_SEED}, sort_keys=True)
        for row in rows
    }
    return len(kinds) == 1 and len({row["seed"] for row in rows}) == len(rows)


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


def table(head: list[str], lines: list[list[str]]) -> str:
    return tabulate(lines, head, tablefmt="github", disable_numparse=True)


# -----------------------------------------------------------------------------
# Cells


def distance(row: Row, human: Row, column: Column) -> float:
    """How far a row is from the best value that the column could have; the least is the best."""
    value = row[column.key]
    if column.best == "human":
        return abs(value - human[column.key])
    return -value if column.best == "high" else value


def number(value: float, form: str) -> str:
    """`value` in a cell: "-" for nan, which says that there is none."""
    if math.isnan(value):
        return "-"
    return format(value, form) if math.isfinite(value) else "inf"


def cells(rows: list[Row], columns: tuple[Column, ...]) -> list[list[str]]:
    """The table's cells, a list a row, the row's name first.

    A text metric shows its distance to human; a star stands where the row has <key>_best: see groups.py. A
    row with a problem says so.
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


def header(columns: tuple[Column, ...]) -> list[str]:
    return ["", *(c.title for c in columns)]


def markdown(columns: tuple[Column, ...], body: list[list[str]]) -> str:
    """The table as Markdown, its columns aligned in the source too."""
    lines = [header(columns), *body]
    width = [max(len(line[i]) for line in lines) for i in range(len(columns) + 1)]

    def bars(line: list[str]) -> str:
        numbers = [cell.rjust(w) for cell, w in zip(line[1:], width[1:])]
        return "| " + " | ".join([line[0].ljust(width[0]), *numbers]) + " |"

    rule = bars(["-" * width[0], *("-" * (w - 1) + ":" for w in width[1:])])
    return "\n".join([bars(lines[0]), rule, *map(bars, body)])


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
# Files


class View(NamedTuple):
    """A table as it is read: by people, and by a spreadsheet."""

    markdown: str
    sheet: str = ""  # CSV; "" where there is none

    def write(self, out: Path) -> None:
        """OUT.md and OUT.csv, each whole or not at all."""
        out.parent.mkdir(parents=True, exist_ok=True)
        for end, text in ((".md", self.markdown), (".csv", self.sheet)):
            if text:
                with replacing(beside(out, end)) as file:
                    file.write(text.encode())


def paragraphs(*parts: str | list[str]) -> str:
    """Markdown of tables and of paragraphs, of which one may be a list of lines; empty ones are left out."""
    texts = ["\n".join(part) if isinstance(part, list) else part for part in parts]
    return "\n\n".join(text for text in texts if text) + "\n"


def samples_file(out: Path, name: str) -> Path:
    """Where the texts of a row are, one JSON string a line. UserError if their folder is a link: what is
    written there would go elsewhere."""
    folder = beside(out, ".samples")
    if folder.is_symlink():
        raise UserError(
            f"{folder} is a link, which nothing is written through: remove it, or give another --out"
        )
    return folder / f"{file_stem(name)}.jsonl"


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
