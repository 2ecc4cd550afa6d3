"""What a page shows of a table: of each measure its view, the table's figures, and some of its texts.

All is made of the rows of the store but the pictures and texts that lie beside it.
"""

import base64
import glob
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pandas as pd

from common.config import read_config, with_defaults
from common.errors import UserError, nearest, reading
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


def open_table(name: Path, prompts: int) -> ReportedTable:
    """The table of the store NAME.jsonl, which may be named with its ending. UserError if there is none, if
    it is none of ours or damaged, or if one of its measures is not there."""
    name = name.with_suffix("") if name.suffix == ".jsonl" else name
    path = beside(name, ".jsonl")
    if not path.is_file():
        near = nearest(str(path), map(str, path.parent.glob("*.jsonl")))
        raise UserError(f"{path} is not there{near or ': eval_diversity.py makes a table of runs'}")
    views: dict[str, View] = {}
    configs: dict[str, dict[str, Any]] = {}
    figures: dict[str, str] = {}
    texts: list[dict[str, str]] = []
    with reading(path), TemporaryDirectory() as folder:
        store, drawn = Store(path), Path(folder) / name.name
        for key in store.measures():
            if key == search.NAME:
                views[key] = search.view(search.trials_in(store))
            elif rows := table_rows(store, measure := find_measure(key)):
                views[key] = measure.view(rows)
                measure.draw(rows, drawn, "png")
                first = {row: runs[0] for row, runs in grouped(rows).items()}
                for row, run in first.items():
                    if "training" in run:
                        configs[row] = run["training"] | {"row": run["row"]}
                    image = beside(name, ".samples") / f"{file_stem(run['name'])}.png"
                    if image.is_file():  # of a table of images
                        figures[f"drawn by {row}"] = data_url(image)
                if key == TextMeasure.name:
                    texts = samples(name, rows, first, prompts)
        figures |= pictures(name) | pictures(drawn)
    return ReportedTable(name.name, about_rows(configs), different_settings(configs), views, figures, texts)


def about_rows(configs: dict[str, dict[str, Any]]) -> dict[str, str]:
    """What each row is: the first paragraph of its config file; where a flag chose another head, or no such
    file is there, nothing."""
    out = {}
    for name, config in configs.items():
        file = find(Path("config", f"{config['row'] or name}.py"))
        if file.is_file() and read_config(file).get("head", TrainConfig.head) == config.get("head"):
            lines = takewhile(lambda line: line.startswith("# "), read_text(file).splitlines())
            out[name] = " ".join(line.removeprefix("# ") for line in lines)
    return out


def different_settings(configs: dict[str, dict[str, Any]]) -> pd.DataFrame | None:
    """The settings of training in which rows differ, by their names: a line a row. None without such."""
    if len(configs) < 2:
        return None
    whole = pd.DataFrame({name: with_defaults(TrainConfig, c) for name, c in configs.items()}).map(str)
    known = [key for key in whole.index if key in vars(TrainConfig()) and key not in LEFT_OUT]
    different = [key for key in known if whole.loc[key].nunique() > 1]
    return whole.loc[different].T if different else None


def data_url(picture: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(picture.read_bytes()).decode()}"


def pictures(name: Path) -> dict[str, str]:
    """The .png files whose names begin with that of the table."""
    files = sorted(name.parent.glob(f"{glob.escape(name.name)}.*"))
    return {path.stem: data_url(path) for path in files if path.suffix == ".png"}


def samples(name: Path, rows: list[Row], first: dict[str, Row], prompts: int) -> list[dict[str, str]]:
    """The first texts of each row's `first` run, by prompt: all continue the same ones, human text first."""
    words, tokenize = rows[0]["settings"]["words"], rows[0]["settings"].get("tokenize", "13a")
    references = {row["name"]: row for row in rows if row.get("reference")}
    of_rows = {}
    for row, run in sorted((first | references).items(), key=lambda item: item[0] != "human"):
        path = samples_file(name, run["name"])
        if path.is_file():
            texts = [cut(text, words, tokenize).strip() for text in read_texts(path)[:prompts]]
            of_rows[row] = [text if len(text) <= SIGNS else text[:SIGNS] + " ..." for text in texts]
    return [dict(zip(of_rows, texts)) for texts in zip(*of_rows.values())]
