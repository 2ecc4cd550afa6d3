"""What a report shows of a table: of each measure its cells and notes, the table's figures, and some of its
texts. All is made of the rows of the store but the pictures and texts that lie beside it."""

import base64
import glob
import math
import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from evaluation.columns import HONEST, Column
from evaluation.texts import cut
from measures import search
from measures.find import find_measure
from measures.measure import Measure, left_out, table_rows
from measures.store import OURS, Row, Store
from measures.text import TextMeasure, columns_in, run_view, summary_of, summary_view
from measures.views import grouped, number, read_texts, samples_file
from runtime.errors import UserError
from runtime.files import beside, foreign
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
    "rest.embeddings": "Whole climbs that each row sampled beside real ones, t-SNE of their rates",
    "embeddings": "Texts of each row beside human ones, t-SNE of their embeddings",
    "samplers": "What each sampler writes, against its model evaluations",
    "filled": "A maze being filled in, by order of generation",
    "rest": "The rest of a climb, given what is known of it",
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
    """A row of the text measure."""

    name: str
    problem: str
    reference: bool
    cells: list[Cell]
    seeds: list[tuple[str, list[str]]]  # (which one, its values); none of a row of one run


class Plain(NamedTuple):
    """A table as the measure's view has it."""

    head: list[str]
    lines: list[list[tuple[str, str]]]  # (the number that a cell begins with, for sorting; its text)


class Notes(NamedTuple):
    """What stands under the tables in the measure's view."""

    paragraphs: list[str]
    columns: list[str]


class Part(NamedTuple):
    """What the table says of one measure."""

    measure: str
    columns: tuple[Column, ...]  # of the `lines`
    lines: list[Line]  # of the text measure; the others have `plain` tables
    plain: list[Plain]
    notes: Notes

    @property
    def marked(self) -> bool:
        """Whether there are groups that cannot be told apart."""
        return any(cell.best for line in self.lines for cell in line.cells)


class Figure(NamedTuple):
    caption: str
    source: str  # a data URL: it holds the picture
    photo: bool = False  # whether its colours are those of what it shows


class Sample(NamedTuple):
    row: str
    text: str


class Table(NamedTuple):
    name: str
    parts: list[Part]
    figures: list[Figure]
    samples: list[list[Sample]]  # for each prompt the rows' continuations


def table_path(path: Path) -> Path | None:
    """The name of the table that `path` means, without ending; None if there is no such file."""
    if not path.name:  # "." may be a run
        return None
    name = path.with_suffix("") if path.suffix == ".jsonl" else path
    return name if beside(name, ".jsonl").is_file() else None


def open_table(name: Path, prompts: int) -> Table:
    """A table of a page. UserError if its store is none of ours or is damaged, or if one of its measures is
    not there."""
    path = beside(name, ".jsonl")
    store = Store(path)
    try:
        measures = [find_measure(measure) for measure in store.measures() if measure != search.NAME]
    except UserError as error:
        raise UserError(f"{path} cannot be shown: {error}") from None
    parts: list[Part] = []
    drawn: list[Figure] = []
    texts: list[list[Sample]] = []
    with foreign(path, OURS), TemporaryDirectory() as folder:
        out = Path(folder) / name.name
        for measure in measures:
            rows = table_rows(store, measure)
            parts.append(part(measure, rows, left_out(store, measure)))
            if rows:
                measure.draw(rows, out)
            drawn += drawings(name, rows)
            if parts[-1].lines:
                texts = samples(name, rows, prompts)
        if trials := search.trials_in(store):
            parts.append(plain_part(search.NAME, search.view(trials).markdown))
            search.draw(trials, beside(out, ".tune"))
        return Table(name.name, parts, [*pictures(out, name), *drawn], texts)


def part(measure: Measure, rows: list[Row], others: list[str]) -> Part:
    """`others`: lines about rows that stand in no table."""
    if not rows:
        return Part(measure.name, (), [], [], Notes(others, []))
    if measure.name == TextMeasure.name:
        return text_part(rows, others)
    return plain_part(measure.name, measure.view(rows).markdown, others)


# -----------------------------------------------------------------------------
# Cells of the text measure


def text_rows(rows: list[Row]) -> list[Row]:
    """What a line is of: a training's means over its seeds, where any has several; else a run."""
    sound = grouped(r for r in rows if "problem" not in r)
    return summary_of(rows) if any(len(runs) > 1 for runs in sound.values()) else rows


def text_part(rows: list[Row], others: list[str]) -> Part:
    summary = text_rows(rows)
    of_runs = summary is rows
    columns = tuple(c for c in columns_in(rows) if of_runs or c.key != "step")
    human = next((r for r in rows if r["name"] == "human"), {})
    lines = [line(r, columns, human) for r in summary]
    under = (run_view if of_runs else summary_view)(rows).markdown
    return plain_part(TextMeasure.name, under, others)._replace(columns=columns, lines=lines, plain=[])


def line(row: Row, columns: tuple[Column, ...], human: Row) -> Line:
    """A row with the values of its seeds."""

    def value(column: Column, at: int) -> str:
        of_seed = row.get(column.key + "_seeds", {at: None})[at]
        return number(math.nan if of_seed is None else of_seed, column.form)

    seeds = [
        (f"seed {seed}", [value(c, at) for c in columns]) for at, seed in enumerate(row.get("seeds", []))
    ]
    cells = []
    for i, c in enumerate(columns):
        said = "; ".join(f"{seed}: {values[i]}" for seed, values in seeds)
        cells.append(cell(row, c, human, said))
    return Line(row["name"], row.get("problem", ""), bool(row.get("reference")), cells, seeds)


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


# -----------------------------------------------------------------------------
# Views


def plain_part(measure: str, markdown: str, others: list[str] | None = None) -> Part:
    """The tables and notes of a view that has just been made."""
    plain, columns, said = [], [], others or []
    for paragraph in re.split(r"\n\s*\n", markdown.strip()):
        lines = paragraph.splitlines()
        if paragraph.startswith("|"):
            head, _, *body = ([c.strip() for c in row.strip("|").split("|")] for row in lines)
            plain.append(Plain(head, [[(leading_number(c), c) for c in cells] for cells in body]))
        elif paragraph.startswith("- "):
            columns += [line.removeprefix("- ") for line in lines]
        else:
            said = [*said, *lines]
    return Part(measure, (), [], plain, Notes(said, columns))


def leading_number(text: str) -> str:
    """The number that `text` begins with, "" if it begins with none."""
    first, *_ = text.split() or [""]
    try:
        return repr(float(first))
    except ValueError:
        return ""


# -----------------------------------------------------------------------------
# Figures


def data_url(picture: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(picture.read_bytes()).decode()}"


def pictures(*names: Path) -> Iterator[Figure]:
    """The .png files whose names begin with that of the table, in one folder or the other: those that its
    measures have drawn now, and the others that lie beside it."""
    files: dict[str, Path] = {}
    for name in reversed(names):
        there = name.parent.glob(f"{glob.escape(name.name)}.*")
        files |= {path.stem: path for path in there if path.suffix == ".png"}
    for stem, path in sorted(files.items()):
        caption = next((text for end, text in CAPTIONS.items() if stem.endswith("." + end)), stem)
        yield Figure(caption, data_url(path))


def drawings(name: Path, rows: list[Row]) -> Iterator[Figure]:
    """What the first run of each row drew, of a table of images."""
    for row, runs in grouped(rows).items():
        path = beside(name, ".samples") / f"{file_stem(runs[0]['name'])}.png"
        if path.is_file():
            yield Figure(f"Drawn by {row}", data_url(path), photo=True)


# -----------------------------------------------------------------------------
# Texts


def samples(name: Path, rows: list[Row], prompts: int) -> list[list[Sample]]:
    """The first texts of each row's first run, by prompt: all continue the same ones, human text first.

    Not those of a file, which continue others.
    """
    words, of_rows = rows[0]["settings"]["words"], {}
    files = {r["name"] for r in rows if "texts_sha256" in r}
    for row in sorted(text_rows(rows), key=lambda r: r["name"] != "human"):
        run = row.get("runs", [row["name"]])[0]
        path = samples_file(name, run)
        if run not in files and path.is_file():
            with foreign(path, "a file of texts, one JSON string a line"):
                of_rows[row["name"]] = [shown(t, words) for t in read_texts(path)[:prompts]]
    count = min(map(len, of_rows.values()), default=0)
    return [[Sample(row, texts[i]) for row, texts in of_rows.items()] for i in range(count)]


def shown(text: str, words: int) -> str:
    """What the table measured of a text, or the start of it."""
    text = cut(text, words).strip()
    return text if len(text) <= SIGNS else text[:SIGNS] + " ..."
