"""Documents: one or several of a file of text, and one of each row of .jsonl, .csv, .parquet or of a data set
on the hub."""

import csv
import hashlib
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from common import errors
from common.errors import UserError
from common.hub import load
from data.splits import bounded_lines, file_lines, reading

TEXTS = (".txt", ".txt.gz", ".md")
ENDINGS = (*TEXTS, ".jsonl", ".jsonl.gz", ".csv", ".csv.gz", ".parquet")
ON_HUB = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?")  # owner/name, perhaps with a configuration
ROWS = 1000  # that are read at a time
LONGEST = 2**28  # characters of a line that is a row, or part of one

csv.field_size_limit(LONGEST)


class Document(NamedTuple):
    key: bytes  # SHA-256 of what decides its split: of the name of a .txt file, of the text of a row
    lines: Iterator[str]  # each with its "\n"; a long one in pieces, see bounded_lines


Documents = Callable[[], Iterator[Document]]  # starts a fresh pass


def find_files(source: Path) -> dict[str, Path]:
    """The files of text that `source` is, or that are below it and not hidden, in the order of their names.

    A name is the path in `source`, without ".gz": it is the same on every machine, compressed or not.
    """
    if source.is_file():
        if not source.name.endswith(ENDINGS):
            raise UserError(f"source {source} is no {', '.join(ENDINGS)}: convert it, or rename it if it is")
        return {source.name.removesuffix(".gz"): source}
    files: dict[str, Path] = {}
    others: list[str] = []
    for path in source.rglob("*"):
        inside = path.relative_to(source)
        if any(part.startswith(".") for part in inside.parts) or not path.is_file():
            continue
        if not path.name.endswith(ENDINGS) or path.name == "README.md":  # a data set's own page
            others.append(path.suffix or path.name)
            continue
        name = inside.as_posix().removesuffix(".gz")
        if name in files:
            raise UserError(f"source {source} has both {name} and {name}.gz: keep one")
        files[name] = path
    if others:
        kinds = sorted(set(others))
        some = ", ".join(kinds[:4]) + ", ..." * (len(kinds) > 4)
        print(f"not read: {len(others)} files of other kinds ({some})", file=sys.stderr)
    return dict(sorted(files.items()))


def file_documents(files: Mapping[str, Path], column: str, separator: str) -> Iterator[Document]:
    """The documents of `files`, which `find_files` gave.

    column     the text of those that have rows
    separator  the line that stands between two documents of a file of text; "" is none
    """
    for name, path in files.items():
        if path.name.endswith(TEXTS):
            yield from text_documents(name, path, separator)
        else:
            values = VALUES[Path(name).suffix](path, column)
            yield from row_documents(texts_among(values, column, str(path)))


def text_documents(name: str, path: Path, separator: str) -> Iterator[Document]:
    """The first document of a file is known by the file's name, the others by their text, as rows are."""
    key = hashlib.sha256(os.fsencode(name)).digest()
    for separates, lines in groupby(file_lines(path), lambda line: line.strip() == separator != ""):
        if separates:
            continue
        if key:
            yield Document(key, lines)
            key = b""
        else:
            yield from row_documents(["".join(lines)])


def row_documents(texts: Iterable[str]) -> Iterator[Document]:
    """A document for each text."""
    for text in texts:
        lines = bounded_lines(io.StringIO(text, newline="\n"))
        yield Document(hashlib.sha256(text.encode()).digest(), lines)


def texts_among(values: Iterable[Any], column: str, where: str) -> Iterator[str]:
    """The texts among the values of a column; how many are null is said. UserError for any other value, and
    for a text that UTF-8 cannot hold."""
    n = nulls = 0
    for n, value in enumerate(values, 1):
        if value is None:
            nulls += 1
            continue
        try:
            text = value.decode() if isinstance(value, bytes) else value
            text.encode()
        except (AttributeError, UnicodeError) as error:
            raise UserError(f"{where}, row {n}: {column!r} is no text ({error}): another --column?") from None
        yield text
    if nulls:
        say_once(f"{where}: {nulls} of {n} rows have no {column!r} and are left out")


@cache
def say_once(line: str) -> None:
    """A text is read several times."""
    print(line, file=sys.stderr)


def check_column(column: str, names: Iterable[str], where: str) -> None:
    """UserError if `column` is not one of the `names` of those that `where` has."""
    names = list(names)
    if names.count(column) != 1:
        raise UserError(
            f"{where} has {names.count(column) or 'no'} columns {column!r}, it has "
            f"{', '.join(map(repr, names)) or 'none'}: choose one with data/text/prepare.py --column"
        )


def whole_lines(path: Path) -> Iterator[str]:
    """The lines of a file."""
    with reading(path) as file:
        yield from file


def json_values(path: Path, column: str) -> Iterator[Any]:
    """The column of a file of JSON objects, one a line."""
    for n, line in enumerate(whole_lines(path), 1):
        if line.strip():
            with errors.reading(f"{path}, line {n}"):
                row = json.loads(line)
            check_column(column, row if isinstance(row, dict) else (), f"{path}, line {n}")
            yield row[column]


def csv_values(path: Path, column: str) -> Iterator[Any]:
    """The column of a file of comma-separated values, whose first line has the names."""
    rows = csv.DictReader(whole_lines(path), strict=True)
    with errors.reading(path):
        check_column(column, rows.fieldnames or (), str(path))
        yield from (row[column] for row in rows)


def parquet_values(path: Path, column: str) -> Iterator[Any]:
    """The column of a parquet file."""
    from pyarrow.parquet import ParquetFile

    with errors.reading(path), ParquetFile(path) as file:
        check_column(column, file.schema_arrow.names, str(path))
        for batch in file.iter_batches(batch_size=ROWS, columns=[column]):
            yield from batch[column].to_pylist()


VALUES = {".jsonl": json_values, ".csv": csv_values, ".parquet": parquet_values}


def hub_documents(source: str, column: str) -> dict[str, Documents]:
    """The documents of each split of a data set on the Hugging Face hub, downloaded once into its cache.

    source  owner/name, or owner/name:configuration
    """
    name, _, configuration = source.partition(":")
    try:
        hub = load(name, configuration)
    except Exception as error:  # of a dozen kinds
        why = f"{type(error).__name__}: {error}"
        raise UserError(
            f"source {source!r} is no file or folder here, and cannot be had from the hub ({why}): "
            f"check the path or the name, and the network, or give a file or folder of {', '.join(ENDINGS)}"
        ) from None

    def documents(split: str) -> Iterator[Document]:
        where = f"{source}, split {split}"
        check_column(column, hub[split].column_names, where)
        rows = hub[split].select_columns(column).iter(ROWS)
        values = (value for batch in rows for value in batch[column])
        return row_documents(texts_among(values, column, where))

    return {str(split): partial(documents, split) for split in hub}
