"""A table of rows: its cells, its files (Markdown, CSV, JSON, samples), and the rows that are kept of it."""

import csv
import io
import json
import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tabulate import tabulate

from data.held_out import Truth
from evaluation.columns import ALL, PAPER, Column, shown
from evaluation.provenance import scoring_code
from evaluation.rows import Data
from evaluation.settings import Settings, other_settings
from runtime.errors import UserError
from runtime.files import beside, foreign, lock_of, locked, read_json, replacing
from runtime.names import REFERENCES, check_row_name, file_stem

Row = dict[str, Any]
NAMES = ("name", "row", "checkpoint", "file")  # the keys of a row whose text a user chooses


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


def terminal(columns: tuple[Column, ...], body: list[list[str]]) -> str:
    """The table for a terminal."""
    alignment = ["left", *["right"] * len(columns)]
    return tabulate(body, header(columns), tablefmt="simple", colalign=alignment, disable_numparse=True)


def markdown(columns: tuple[Column, ...], body: list[list[str]]) -> str:
    """The table as Markdown, its columns aligned in the source too.

    Not tabulate's, whose rule under the header is another one: committed tables stay as they are.
    """
    lines = [header(columns), *body]
    width = [max(len(line[i]) for line in lines) for i in range(len(columns) + 1)]

    def bars(line: list[str]) -> str:
        numbers = [cell.rjust(w) for cell, w in zip(line[1:], width[1:])]
        return "| " + " | ".join([line[0].ljust(width[0]), *numbers]) + " |"

    rule = bars(["-" * width[0], *("-" * (w - 1) + ":" for w in width[1:])])
    return "\n".join([bars(lines[0]), rule, *map(bars, body)])


# -----------------------------------------------------------------------------
# Words


def explain(s: Settings, columns: tuple[Column, ...], data: Data) -> list[str]:
    """The lines under the table: its settings and what the columns are."""
    complete = " (not the whole official split)" if data.split.info["complete"] is False else ""
    budget = f"{s.texts} texts" + (f" in {s.loops} loops" if s.loops > 1 else "")
    measured = f", cut to their first {s.words} words" if s.words else ""
    return [
        f"Protocol {s.protocol}: {s.split} split{complete}, tokenizer {data.tokenizer.name}; "
        f"{budget}, {s.prompt_tokens} prompt + {s.new_tokens} new tokens{measured}, "
        f"temperature {s.temperature:g}, top_k {s.top_k}, top_p {s.top_p:g}, "
        f"seed {s.seed} and each run's own; block {s.block_size}, stride {s.stride}; "
        f"Bayesian rows: {s.samples} weight samples; {s.dtype}.",
        "(+x) is the distance to human text; up or down alone is not better. Single runs are not marked: "
        "what is best takes several seeds (table.py).",
        *(f"{c.title}: {c.what}{'' if c.shown else ' (in the CSV and the JSON)'}." for c in columns),
        *([known_truth(data.truth)] if data.truth else []),
    ]


def known_truth(truth: Truth) -> str:
    """The line about the columns TRUTH."""
    i = truth.info
    perplexity = math.exp(i["entropy_rate"])
    return (
        f"The truth p is known exactly: {i['entropy_rate']:.4f} nats a token in closed form "
        f"(perplexity {perplexity:.2f}), {i['entropy']:.4f} over this split. "
        "PPL/floor to coverage are means over every token but those of the first document, "
        "each scored with its whole document in the model's window (coverage at one of eight of them); "
        "the human row is a perfect model there."
    )


def scored_otherwise(rows: Iterable[Row], code: tuple[str, ...] = ()) -> list[str]:
    """The line that names the rows which other code has scored; none where there are no such. `code`: the
    files of the evaluator beside those of all."""
    names = [r["name"] for r in rows if not r.get("reference") and r.get("code") != scoring_code(*code)]
    said = "Scored by another version of this program, and not again, for their runs were not there"
    return [f"{said}: {', '.join(names)}."] if names else []


def exit_code(rows: dict[str, Row]) -> int:
    """The exit code: 1, with a line that names them, if some models could not be evaluated."""
    bad = [f"{name} ({r['problem']})" for name, r in rows.items() if "problem" in r]
    if bad:
        print(f"{len(bad)} of {len(rows)} models could not be evaluated: {'; '.join(bad)}", file=sys.stderr)
    return 1 if bad else 0


# -----------------------------------------------------------------------------
# Files


def samples_folder(out: Path) -> Path:
    """Where the samples of the table `out` are. UserError if that is a link: what is written there would go
    elsewhere."""
    folder = beside(out, ".samples")
    if folder.is_symlink():
        raise UserError(
            f"{folder} is a link, which nothing is written through: remove it, or give another --out"
        )
    return folder


def samples_file(out: Path, name: str) -> Path:
    """Where the texts of a row are, one JSON string a line."""
    return samples_folder(out) / f"{file_stem(name)}.jsonl"


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


def strict(row: Row) -> Row:
    """`row` with nan and inf, which JSON does not have, as strings; those in its lists, too."""

    def known(value: Any) -> Any:
        if isinstance(value, list):
            return [known(v) for v in value]
        return str(value) if isinstance(value, float) and not math.isfinite(value) else value

    return {k: known(v) for k, v in row.items()}


def number_strings(row: Row) -> Row:
    """`row` as it was before `strict`: a name stays one, also where it is "inf" or "nan"."""
    return {k: float(v) if k not in NAMES and v in ("inf", "-inf", "nan") else v for k, v in row.items()}


def json_table(head: dict[str, Any], rows: list[Row]) -> str:
    """JSON of {**head, "rows": rows}, a line a row: what a changed row changes."""
    start = "".join(f"{json.dumps(k)}: {json.dumps(v, allow_nan=False)},\n" for k, v in head.items())
    body = ",\n".join(json.dumps(r, allow_nan=False) for r in rows)
    return f'{{{start}"rows": [\n{body}\n]}}\n'


def write_files(
    out: Path,
    s: Settings,
    rows: list[Row],
    texts: dict[str, list[str]],
    columns: tuple[Column, ...],
    notes: list[str],
) -> None:
    """The samples, in the folder out.samples; then out.md, .csv and .json.

    Each whole or not at all, the JSON last.
    """
    samples_folder(out).mkdir(parents=True, exist_ok=True)
    keys, seen = [c.key for c in columns], shown(columns, rows)
    sheet = [["name", *keys], *([r["name"], *(r.get(k, "") for k in keys)] for r in rows)]
    listed = [*notes[2:], *scored_otherwise(rows)]
    explained = "\n".join(notes[:2]) + "\n\n" + "\n".join("- " + n for n in listed)
    content = {}
    for name, written in texts.items():
        lines = [json.dumps(t, ensure_ascii=False) + "\n" for t in written]
        content[samples_file(out, name)] = "".join(lines)
    content[beside(out, ".md")] = f"{markdown(seen, cells(rows, seen))}\n\n{explained}\n"
    content[beside(out, ".csv")] = csv_text(sheet)
    content[beside(out, ".json")] = json_table({"settings": vars(s)}, [strict(r) for r in rows])
    for path, text in content.items():
        with replacing(path) as f:
            f.write(text.encode())


# -----------------------------------------------------------------------------
# What an earlier table holds


def kept_rows(out: Path | None, s: Settings) -> dict[str, Row]:
    """Rows of an earlier table of this name, those of models and of files of texts, whose samples are there.

    UserError if it had other settings: such rows cannot stand side by side.
    """
    if out is None or not beside(out, ".json").is_file():
        return {}
    path = beside(out, ".json")
    with foreign(path, "a table of this program: give another --out, or move it away"):
        table = read_json(path, strict=True)
        had, rows = dict(table["settings"]), {r["name"]: number_strings(r) for r in table["rows"]}
        for name, row in rows.items():
            check_kept(name, row)
    if odd := other_settings(had, vars(s)):
        raise UserError(
            f"{path} holds rows of other settings ({'; '.join(odd)}): "
            "they cannot stand in one table; use those settings or another --out"
        )

    def whole(name: str, row: Row) -> bool:
        """Whether it is no reference's, nor an older version's, and nothing of it is missing."""
        has_texts = samples_file(out, name).is_file() or "problem" in row
        return not row.get("reference") and ("training" in row or "texts_sha256" in row) and has_texts

    return {name: row for name, row in rows.items() if whole(name, row)}


def check_kept(name: str, row: Row) -> None:
    """UserError or TypeError if it can be no row of ours."""
    if name not in REFERENCES:
        check_row_name(name)  # a file of its name is written
    for column in (*ALL, *PAPER):
        if not isinstance(row.get(column.key, 0.0), (int, float)):
            raise TypeError(f"{column.key} of {name} is no number")


def update(
    out: Path,
    s: Settings,
    rows: dict[str, Row],
    references: list[Row],
    texts: dict[str, list[str]],
    columns: tuple[Column, ...],
    notes: list[str],
) -> list[Row]:
    """Writes the table with `rows` in it, before those that it holds. All its rows.

    Another process may have added some since it was read.
    """
    with locked(lock_of(out)):
        others = {name: r for name, r in kept_rows(out, s).items() if name not in rows}
        table = [*rows.values(), *others.values(), *references]
        write_files(out, s, table, texts, columns, notes)
    return table
