"""What a report shows of a table: of each measure its cells and notes, the table's figures, and some of its
texts. All is made of the rows of the store but the pictures and texts that lie beside it."""

import base64
import glob
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from common.errors import reading
from common.files import beside
from evaluate import search
from evaluate.columns import HONEST
from evaluate.diversity import SPACED
from evaluate.find import find_measure
from evaluate.measure import left_out, table_rows
from evaluate.names import file_stem
from evaluate.report.about import Opening, judged, opening
from evaluate.store import Row, Store
from evaluate.summary import grouped, has_seeds
from evaluate.text import TextMeasure, summary_of
from evaluate.texts import cut
from evaluate.views import Grid, View, read_texts, samples_file

SIGNS = 1000  # of a text that are shown, where the table did not cut it

# what a figure shows, by the end of its file's name
CAPTIONS = {
    "curves": "Learning curves: validation PPL_eps over training",
    "tv": "Total variation distance to the truth over training",
    "mass": "Mass on the observed token, on valid alternatives and on what is forbidden, over training",
    "bias": "Mass on valid alternatives over the truth's, by decade of the truth's probability",
    "memorise": "What reading a text many times does, on that text and on held-out text",
    "tune": "What trials of the search buy",
    "ece": "Calibration: " + next(c.what for c in HONEST if c.key == "ece"),
    "trials": "All trials of the search",
    "forest": "Perplexity over softmax's: tuned, and at the shared point that is softmax's best",
    "rest.embeddings": "Whole climbs that each row sampled beside real ones, t-SNE of their rates",
    "embeddings": "Texts of each row beside human ones, t-SNE of their embeddings",
    "samplers": "What each sampler writes, against its model evaluations",
    "filled": "What a run fills in, by order of generation",
    "rest": "The rest of a climb, given what is known of it",
    "walk": "Each place of a random walk of which one is known: the exact distribution, and a model's",
}


class Part(NamedTuple):
    """What the table says of one measure."""

    measure: str
    grids: list[Grid]
    notes: list[str]


class Figure(NamedTuple):
    caption: str
    source: str  # a data URL: it holds the picture
    photo: bool = False  # whether its colours are those of what it shows


class Sample(NamedTuple):
    row: str
    text: str


class ReportedTable(NamedTuple):
    name: str
    parts: list[Part]
    figures: list[Figure]
    samples: list[list[Sample]]  # for each prompt the rows' continuations
    opening: Opening | None  # None where no row is a training's


def table_path(path: Path) -> Path | None:
    """The name of the table that `path` means, without ending; None if there is no such file."""
    if not path.name:  # "." may be a run
        return None
    name = path.with_suffix("") if path.suffix == ".jsonl" else path
    return name if beside(name, ".jsonl").is_file() else None


def open_table(name: Path, prompts: int) -> ReportedTable:
    """A table of a page. UserError if its store is none of ours or is damaged, or if one of its measures is
    not there."""
    path = beside(name, ".jsonl")
    store = Store(path)
    with reading(path):
        measures = [find_measure(measure) for measure in store.measures() if measure != search.NAME]
    parts: list[Part] = []
    drawn: list[Figure] = []
    texts: list[list[Sample]] = []
    trained: dict[str, Row] = {}
    judging = ""
    with reading(path), TemporaryDirectory() as folder:
        out = Path(folder) / name.name
        for measure in measures:
            rows, others = table_rows(store, measure), left_out(store, measure)
            view = measure.view(rows) if rows else View([])
            parts.append(Part(measure.name, view.grids, [*others, *further(view)]))
            trained |= {row["name"]: row for row in rows if row.get("training")}
            if rows:
                measure.draw(rows, out)
                drawn += drawings(name, rows)
            if rows and measure.name == TextMeasure.name:
                texts, judging = samples(name, rows, prompts), judged(rows[0]["settings"])
        if trials := search.trials_in(store):
            view = search.view(trials)
            parts.append(Part(search.NAME, view.grids, further(view)))
            search.draw(trials, beside(out, ".tune"))
        key = "row" if has_seeds([*trained.values()]) else "name"
        first = {row[key]: row["training"] for row in reversed(trained.values())}
        about = opening(reversed(first.items()), judging=judging)
        return ReportedTable(name.name, parts, [*pictures(out, name), *drawn], texts, about)


def further(view: View) -> list[str]:
    """The notes of a view without those that say what its columns are: these stand at the columns."""
    known = [f"- {title}: {text}." for grid in view.grids for title, text in zip(grid.head[1:], grid.about)]
    return [note for note in view.notes if note not in known]


def leading_number(text: str) -> str:
    """The number that `text` begins with, by which a column is sorted; "" if it begins with none."""
    first, *_ = text.split() or [""]
    try:
        return repr(float(first.replace(",", "")))
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
        beside_table = name.parent.glob(f"{glob.escape(name.name)}.*")
        files |= {path.stem: path for path in beside_table if path.suffix == ".png"}
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
    s, of_rows = rows[0]["settings"], {}
    files = {r["name"] for r in rows if "texts_sha256" in r}
    for row in sorted(summary_of(rows) if has_seeds(rows) else rows, key=lambda r: r["name"] != "human"):
        run = row.get("runs", [row["name"]])[0]
        path = samples_file(name, run)
        if run not in files and path.is_file():
            with reading(path):
                tokenize = s.get("tokenize", SPACED)
                of_rows[row["name"]] = [shown(t, s["words"], tokenize) for t in read_texts(path)[:prompts]]
    count = min(map(len, of_rows.values()), default=0)
    return [[Sample(row, texts[i]) for row, texts in of_rows.items()] for i in range(count)]


def shown(text: str, words: int, tokenize: str) -> str:
    """What the table measured of a text, or the start of it."""
    text = cut(text, words, tokenize).strip()
    return text if len(text) <= SIGNS else text[:SIGNS] + " ..."
