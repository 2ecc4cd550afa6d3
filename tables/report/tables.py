"""What a report shows of a table: of each measure its view, the table's figures, and some of its texts.

All is made of the rows of the store but the pictures and texts that lie beside it.
"""

import base64
import glob
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pandas as pd

from common.config import read_config, with_defaults
from common.errors import reading
from common.files import beside, read_text
from common.places import find
from config.defaults import TrainConfig
from evaluate.diversity import cut
from tables import search
from tables.find import find_measure
from tables.measure import PLACES, table_rows
from tables.names import file_stem
from tables.store import Row, Store
from tables.summary import grouped
from tables.text import TextMeasure
from tables.views import View, read_texts, samples_file

SIGNS = 1000  # of a text that are shown, where the table did not cut it
LEFT_OUT = {*PLACES, "name", "row", "overlay", "seed", "resume", "teacher"}  # of what rows differ in


class ReportedTable(NamedTuple):
    name: str
    about: dict[str, str]  # what each row is
    settings: pd.DataFrame | None  # those in which its rows differ
    views: dict[str, View]  # by measure
    figures: dict[str, str]  # data URLs, which hold the pictures, by their names
    samples: list[dict[str, str]]  # for each prompt the rows' continuations


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
    views: dict[str, View] = {}
    configs: dict[str, dict[str, Any]] = {}
    figures: dict[str, str] = {}
    texts: list[dict[str, str]] = []
    with reading(path), TemporaryDirectory() as folder:
        store, out = Store(path), Path(folder) / name.name
        for key in store.measures():
            if key == search.NAME:
                views[key] = search.view(search.trials_in(store))
                continue
            measure = find_measure(key)
            if rows := table_rows(store, measure):
                views[key] = measure.view(rows)
                measure.draw(rows, out, "png")
                figures |= drawings(name, rows)
                first = {row: runs[0] for row, runs in grouped(rows).items()}
                trained = {row: run for row, run in first.items() if "training" in run}
                configs |= {row: run["training"] | {"row": run["row"]} for row, run in trained.items()}
                texts = samples(name, rows, prompts) if key == TextMeasure.name else texts
        figures |= pictures(name) | pictures(out)
    return ReportedTable(name.name, about_rows(configs), different_settings(configs), views, figures, texts)


def about_rows(configs: Mapping[str, dict[str, Any]]) -> dict[str, str]:
    """What each row is: the first paragraph of its config file; where a flag chose another head, or no such
    file is there, nothing."""
    out = {}
    for name, config in configs.items():
        file = find(Path("config", f"{config.get('row') or name}.py"))
        if file.is_file() and read_config(file).get("head", TrainConfig.head) == config.get("head"):
            lines = takewhile(lambda line: line.startswith("# "), read_text(file).splitlines())
            out[name] = " ".join(line.removeprefix("# ") for line in lines)
    return out


def different_settings(configs: Mapping[str, dict[str, Any]]) -> pd.DataFrame | None:
    """The settings of training in which rows differ, by their names: a line a row. None without such."""
    if len(configs) < 2:
        return None
    whole = pd.DataFrame({name: with_defaults(TrainConfig, c) for name, c in configs.items()}).map(str)
    known = [key for key in whole.index if key in vars(TrainConfig()) and key not in LEFT_OUT]
    different = [key for key in known if whole.loc[key].nunique() > 1]
    return whole.loc[different].T if different else None


# -----------------------------------------------------------------------------
# Figures and texts


def data_url(picture: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(picture.read_bytes()).decode()}"


def pictures(name: Path) -> dict[str, str]:
    """The .png files whose names begin with that of the table: those that its measures have drawn now, and
    the others that lie beside it."""
    files = sorted(name.parent.glob(f"{glob.escape(name.name)}.*"))
    return {path.stem: data_url(path) for path in files if path.suffix == ".png"}


def drawings(name: Path, rows: list[Row]) -> dict[str, str]:
    """What the first run of each row drew, of a table of images."""
    files = {row: f"{file_stem(runs[0]['name'])}.png" for row, runs in grouped(rows).items()}
    paths = {row: beside(name, ".samples") / file for row, file in files.items()}
    return {f"drawn by {row}": data_url(path) for row, path in paths.items() if path.is_file()}


def samples(name: Path, rows: list[Row], prompts: int) -> list[dict[str, str]]:
    """The first texts of each row's first run, by prompt: all continue the same ones, human text first."""
    words, tokenize = rows[0]["settings"]["words"], rows[0]["settings"].get("tokenize", "13a")
    first = {row: runs[0] for row, runs in grouped(rows).items()}
    references = {row["name"]: row for row in rows if row.get("reference")}
    of_rows = {}
    for row, run in sorted((first | references).items(), key=lambda item: item[0] != "human"):
        path = samples_file(name, run["name"])
        if path.is_file():
            texts = [cut(text, words, tokenize).strip() for text in read_texts(path)[:prompts]]
            of_rows[row] = [text if len(text) <= SIGNS else text[:SIGNS] + " ..." for text in texts]
    return [dict(zip(of_rows, texts)) for texts in zip(*of_rows.values())]
