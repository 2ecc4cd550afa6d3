"""Documents: a .txt file is one, and so is a row of .jsonl, of .parquet or of a data set on the hub."""

import hashlib
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from data.splits import bounded_lines, file_lines, reading
from runtime.errors import UserError
from runtime.hub import load
from runtime.packages import not_installed

ENDINGS = (".txt", ".txt.gz", ".jsonl", ".jsonl.gz", ".parquet")
ON_HUB = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?")  # owner/name, perhaps with a configuration
ROWS = 1000  # that are read at a time


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
        if not path.name.endswith(ENDINGS):
            others.append(path.suffix or path.name)
            continue
        name = inside.as_posix().removesuffix(".gz")
        if name in files:
            raise UserError(f"source {source} has both {name} and {name}.gz: keep one")
        files[name] = path
    if files and others:
        kinds = sorted(set(others))
        some = ", ".join(kinds[:4]) + ", ..." * (len(kinds) > 4)
        print(f"not read: {len(others)} files of other kinds ({some})", file=sys.stderr)
    return dict(sorted(files.items()))


def file_documents(files: Mapping[str, Path], column: str) -> Iterator[Document]:
    """The documents of `files`, which `find_files` gave. `column`: the text of those that have rows."""
    for name, path in files.items():
        if path.name.endswith((".txt", ".txt.gz")):
            yield Document(hashlib.sha256(os.fsencode(name)).digest(), file_lines(path))
        else:
            rows = parquet_rows if path.suffix == ".parquet" else json_rows
            yield from row_documents(rows(path, column))


def row_documents(texts: Iterable[str]) -> Iterator[Document]:
    """A document for each text."""
    for text in texts:
        lines = bounded_lines(io.StringIO(text, newline="\n"))
        yield Document(hashlib.sha256(text.encode()).digest(), lines)


def checked(value: Any, column: str, where: str) -> str:
    """`value`, a text that UTF-8 can hold. UserError for anything else, naming `where` it stands."""
    if not isinstance(value, str):
        kind = "null" if value is None else f"of type {type(value).__name__}"
        raise UserError(
            f"{where}: {column!r} is {kind}, not text: take the row out, or choose another --column"
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{where}: {column!r} is not Unicode text ({error.reason}): correct it") from None
    return value


def check_column(column: str, names: Iterable[str], where: str) -> None:
    """UserError if `column` is not among the `names` of those that `where` has."""
    names = list(names)
    if column not in names:
        raise UserError(
            f"{where} has no column {column!r}, it has {', '.join(map(repr, names)) or 'none'}: "
            "choose one with data/text/prepare.py --column"
        )


def json_rows(path: Path, column: str) -> Iterator[str]:
    """The texts in a file of JSON objects, one a line."""
    with reading(path) as file:
        for n, line in enumerate(file, 1):
            if not line.strip():
                continue
            where = f"{path}, line {n}"
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UserError(f"{where} is not JSON ({error}): correct it, or take it out") from None
            if not isinstance(row, dict):
                raise UserError(f'{where} is not a row such as {{"{column}": "..."}}: it is {line[:40]!r}')
            check_column(column, row, where)
            yield checked(row[column], column, where)


def parquet_rows(path: Path, column: str) -> Iterator[str]:
    """The texts in a parquet file."""
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    n = 0
    try:
        with ParquetFile(path) as file:
            check_column(column, file.schema_arrow.names, str(path))
            for batch in file.iter_batches(batch_size=ROWS, columns=[column]):
                for value in batch[column].to_pylist():
                    n += 1
                    yield checked(value, column, f"{path}, row {n}")
    except (ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as parquet ({error}, after row {n}): get it again") from None


def hub_documents(source: str, column: str) -> dict[str, Documents]:
    """The documents of each split of a data set on the Hugging Face hub, downloaded once into its cache.

    source  owner/name, or owner/name:configuration
    """
    name, _, configuration = source.partition(":")
    try:
        hub = load(name, configuration)
    except ImportError:
        raise UserError(f"source {source!r}: {not_installed('datasets')}") from None
    except Exception as error:  # of a dozen kinds
        why = f"{type(error).__name__}: {error}"
        raise UserError(
            f"source {source!r} is no file or folder here, and cannot be had from the hub ({why}): "
            f"check the path or the name, and the network, or give a file or folder of {', '.join(ENDINGS)}"
        ) from None

    def rows(split: str) -> Iterator[str]:
        check_column(column, hub[split].column_names, f"{source}, split {split},")
        n = 0
        for batch in hub[split].select_columns(column).iter(ROWS):
            for value in batch[column]:
                n += 1
                yield checked(value, column, f"{source}, split {split}, row {n}")

    def documents(split: str) -> Iterator[Document]:
        return row_documents(rows(split))

    return {str(split): partial(documents, split) for split in hub}
