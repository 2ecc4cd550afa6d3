"""What a report shows of a table: its cells, its figures, its notes and some of its texts, all of its files.

Of table.py and eval_diversity.py cell by cell, with groups and seeds; of the other programs the tables of
their Markdown.
"""

import base64
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from evaluation.by_seed import grouped
from evaluation.tables import Row, beside, number, number_strings, read_texts, samples_file

from evaluation import figures, tuning
from evaluation.columns import ALL, HONEST, PAPER, Column
from evaluation.texts import cut
from runtime.errors import UserError
from runtime.files import foreign, read_json, read_text
from runtime.names import file_stem

SIGNS = 1000  # of a text that are shown, where the table did not cut it

# what a figure shows, by the end of its file's name
CAPTIONS = {
    "curves": "Learning curves: validation PPL_eps over training",
    "tv": "Total variation distance to the truth over training",
    "mass": "Mass on the observed token, on valid alternatives and on what is forbidden, over training",
    "bias": "Mass on valid alternatives over the truth's, by decade of the truth's probability",
    "memorise": "What reading a text many times does, on that text and on held-out text",
    "frontier": "Quality against diversity over sampling temperatures",
    "tune": "What trials of the search buy",
    "ece": "Calibration: " + next(c.what for c in HONEST if c.key == "ece"),
    "trials": "All trials of the search",
    "budgets": "Perplexity over tuned softmax's, against training tokens",
    "embeddings": "Texts of each row beside human ones, t-SNE of their embeddings",
    "samplers": "What each sampler writes, against its model evaluations",
    "filled": "A maze being filled in, by order of generation",
    "rest": "The rest of a climb, given what is known of it",
    "rest.embeddings": "Whole climbs that each row sampled beside real ones, t-SNE of their rates",
    "walk": "Each place of a random walk of which one is known: the exact distribution, and a model's",
}


class Cell(NamedTuple):
    sort: str  # the number as it is, for sorting; "" where there is none
    text: str
    half: str = ""  # of the 95% interval
    distance: str = ""  # to human text
    best: bool = False  # cannot be told from the best of its column
    seeds: str = ""  # the value of each


class Line(NamedTuple):
    """A row of a table."""

    name: str
    problem: str
    reference: bool
    cells: list[Cell]
    seeds: list[tuple[str, list[str]]]  # (which one, its values); none of a row of one run


class Figure(NamedTuple):
    caption: str
    source: str  # a data URL: it holds the picture, in which nothing can run and no id is the page's


class Plain(NamedTuple):
    """A table as its Markdown has it."""

    head: list[str]
    lines: list[list[tuple[str, str]]]  # (the number that a cell begins with, for sorting; its text)


class Notes(NamedTuple):
    """What stands under the table in its Markdown."""

    paragraphs: list[str]
    columns: list[str]


class Sample(NamedTuple):
    row: str
    text: str


class Table(NamedTuple):
    name: str
    columns: tuple[Column, ...]
    lines: list[Line]  # none where there are `plain` tables
    plain: list[Plain]
    marked: bool  # whether there are groups that cannot be told apart
    notes: Notes
    figures: list[Figure]
    samples: list[list[Sample]]  # for each prompt the rows' continuations


def table_path(path: Path) -> Path | None:
    """The name of the table that `path` means, without ending; None if there is no such file."""
    if not path.name:  # "." may be a run
        return None
    name = path.with_suffix("") if path.suffix == ".json" else path
    return name if beside(name, ".json").is_file() else None


def open_table(name: Path, prompts: int) -> Table:
    """A table of a page. UserError if the file is none of ours, or is damaged."""
    path = beside(name, ".json")
    with foreign(path, "a table of this program (table.py, classify_table.py or an eval_*.py)"):
        content = read_json(path, strict=True)
        settings = dict(content["settings"])
        rows = [number_strings(dict(r)) for r in content["rows"]]
        if not {"protocol", "evaluation"} & settings.keys():
            under, drawn = beside(name, ".md"), [*pictures(name), *drawings(name, rows)]
            return Table(name.name, (), [], plain_tables(under), False, notes(under), drawn, [])
        runs_file = beside(name, ".runs.json")
        runs = {}
        if runs_file.is_file():
            runs = {r["name"]: number_strings(r) for r in read_json(runs_file, strict=True)["rows"]}
        columns = columns_in(settings, rows)
        human = next((r for r in rows if r["name"] == "human"), {})
        lines = [line(r, columns, human, runs) for r in rows]
        drawn = [*own_figures(name, rows, bool(runs)), *pictures(name)]
        marked = any(r.get(c.key + "_best") for r in rows for c in columns)
        words = settings.get("evaluation", settings).get("words", 0)
        texts = samples(beside(name, ".runs") if runs else name, rows, prompts, words)
        return Table(name.name, columns, lines, [], marked, notes(beside(name, ".md")), drawn, texts)


# -----------------------------------------------------------------------------
# Cells


def columns_in(settings: dict[str, Any], rows: list[Row]) -> tuple[Column, ...]:
    """The columns that the rows have a number for."""
    of_runs = "evaluation" in settings
    known = PAPER if settings.get("protocol") == "paper" else ALL
    return tuple(c for c in known if any(c.key in r for r in rows) and not (of_runs and c.key == "step"))


def line(row: Row, columns: tuple[Column, ...], human: Row, runs: dict[str, Row]) -> Line:
    """A row with the values of its seeds, which are in the table of all `runs`."""
    own = [runs[name] for name in row.get("runs", []) if name in runs and not row.get("reference")]
    seeds = []
    for run in own:
        values = [number(run.get(c.key, math.nan), c.form) for c in columns]
        seeds.append((f"seed {run['training']['seed']}", values))
    cells = []
    for i, c in enumerate(columns):
        said = "; ".join(f"{seed}: {values[i]}" for seed, values in seeds)
        cells.append(cell(row, c, human, said))
    return Line(str(row["name"]), str(row.get("problem", "")), bool(row.get("reference")), cells, seeds)


def cell(row: Row, column: Column, human: Row, seeds: str) -> Cell:
    value = row.get(column.key, math.nan)
    if math.isnan(value):
        return Cell("", "-")
    half = row.get(column.key + "_ci", math.nan)
    far = ""
    if column.best == "human" and row is not human and column.key in human:
        far = format(value - human[column.key], "+" + column.form)
    return Cell(
        repr(value),
        number(value, column.form),
        format(half, column.form) if math.isfinite(half) else "",
        far,
        bool(row.get(column.key + "_best")),
        seeds,
    )


def plain_tables(path: Path) -> list[Plain]:
    """Those of a Markdown file. UserError if there is none."""
    if not path.is_file():
        raise UserError(f"{path} is missing: the program that wrote {path.with_suffix('.json')} writes it")
    out = []
    for part in re.split(r"\n\s*\n", read_text(path).strip()):
        if part.startswith("|"):
            head, _, *lines = ([c.strip() for c in row.strip("|").split("|")] for row in part.splitlines())
            out.append(Plain(head, [[(leading_number(c), c) for c in cells] for cells in lines]))
    return out


def leading_number(text: str) -> str:
    """The number that `text` begins with, "" if it begins with none."""
    first, *_ = text.split() or [""]
    try:
        return repr(float(first))
    except ValueError:
        return ""


def notes(path: Path) -> Notes:
    """The lines under a table, without the further tables between them."""
    if not path.is_file():
        return Notes([], [])
    parts = re.split(r"\n\s*\n", read_text(path).strip())
    under = [p for p in parts if not p.startswith("|")]
    columns = [line.removeprefix("- ") for p in under if p.startswith("- ") for line in p.splitlines()]
    said = [line for p in under if not p.startswith("- ") for line in p.splitlines()]
    return Notes(said, columns)


# -----------------------------------------------------------------------------
# Figures


def data_url(kind: str, picture: bytes) -> str:
    """A URL that holds a picture. `kind`: of image, such as png."""
    return f"data:image/{kind};base64,{base64.b64encode(picture).decode()}"


def own_figures(name: Path, rows: list[Row], of_runs: bool) -> Iterator[Figure]:
    """Those that evaluation/ draws of the table's numbers: learning curves, frontier, search, calibration."""

    def drawn() -> Iterator[figures.Drawing]:
        yield from figures.drawings(name) if of_runs else figures.run_figures(rows)
        frontier, search = beside(name, ".frontier"), beside(name, ".tune.json")
        if beside(frontier, ".json").is_file():
            yield from (("frontier", fig) for _, fig in figures.drawings(frontier))
        if search.is_file():
            store, design = tuning.Store(search), int(read_json(search)["settings"]["design"])
            trials = list(dict.fromkeys(row for row, _ in store.trials))
            if fig := tuning.figure(store, trials, design, len(store.trials)):
                yield "tune", fig
        calibrated = [r for r in rows if "ece" in r]
        if calibrated:
            yield "ece", figures.calibration(calibrated)

    for what, fig in drawn():
        yield Figure(CAPTIONS.get(what, what), data_url("svg+xml", figures.svg(fig)))


DRAWN = ("curves", "tv", "mass", "bias", "memorise", "frontier", "tune")


def pictures(name: Path) -> Iterator[Figure]:
    """The other figures that lie beside the table or its runs."""
    for path in sorted(name.parent.glob(f"{name.name}.*.svg")):
        what = path.name[len(name.name) + 1 : -len(".svg")].removeprefix("runs.")
        if what not in DRAWN and ("." not in what or what in CAPTIONS):
            yield Figure(CAPTIONS.get(what, what), data_url("svg+xml", path.read_bytes()))


def drawings(name: Path, rows: list[Row]) -> Iterator[Figure]:
    """What the first run of each row drew, of a table of images."""
    for row, runs in grouped([{"row": r["name"], **r} for r in rows]).items():
        path = beside(name, ".samples") / f"{file_stem(runs[0]['name'])}.png"
        if path.is_file():
            yield Figure(f"Drawn by {row}", data_url("png", path.read_bytes()))


# -----------------------------------------------------------------------------
# Texts


def samples(texts: Path, rows: list[Row], prompts: int, words: int) -> list[list[Sample]]:
    """The first texts of each row's first run, by prompt: all continue the same ones, human text first.

    Not those of a file, which continue others.
    """
    of_rows = {}
    rows = [r for r in rows if "texts_sha256" not in r]
    for row in sorted(rows, key=lambda r: r["name"] != "human"):
        path = samples_file(texts, (row.get("runs") or [row["name"]])[0])
        if path.is_file():
            with foreign(path, "a file of texts, one JSON string a line"):
                of_rows[row["name"]] = [shown(t, words) for t in read_texts(path)[:prompts]]
    count = min(map(len, of_rows.values()), default=0)
    return [[Sample(row, texts[i]) for row, texts in of_rows.items()] for i in range(count)]


def shown(text: str, words: int) -> str:
    """What the table measured of a text, or the start of it."""
    text = cut(text, words).strip()
    return text if len(text) <= SIGNS else text[:SIGNS] + " ..."
