"""Documents: files of text, rows of .jsonl, .csv and .parquet files, rows of data sets on the hub."""

import csv
import io
import json
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from common.errors import UserError, reading
from common.hub import load
from data.prepare.lines import bounded_lines, file_lines, open_text
from data.tokens import SPLITS

TEXTS = (".txt", ".md")
ROWS = (".jsonl", ".csv", ".parquet")
ENDINGS = (*TEXTS, *ROWS, *(f"{kind}.gz" for kind in (*TEXTS, ".jsonl", ".csv")))
AT_ONCE = 1000  # rows of .parquet files and of the hub
SPLIT_OF = {"train": "train", "test": "test"}
SPLIT_OF |= dict.fromkeys(("val", "valid", "validation", "dev"), "validation")
csv.field_size_limit(2**31 - 1)


class Document(NamedTuple):
    name: str  # of its file, with its number in it, where there are several
    lines: Iterable[str]  # each with its "\n"; a long one in pieces


Documents = Callable[[], Iterator[Document]]  # starts a fresh pass


# -----------------------------------------------------------------------------
# Files


def text_files(source: Path) -> dict[Path, str]:
    """The files with text of a folder, or the file `source`, and the split that a folder of its path is
    called, or that its name begins or ends with; all are "train" where none is held out. In the order of
    their paths, which is the same compressed or not."""
    alone, split_of = source.is_file(), {}
    for path in sorted([source] if alone else source.rglob("*"), key=lambda p: str(p).removesuffix(".gz")):
        name = path.relative_to(source.parent if alone else source).as_posix().removesuffix(".gz")
        hidden = any(part.startswith(".") for part in name.split("/")) or path.name == "README.md"
        if path.is_file() and path.name.endswith(ENDINGS) and not hidden and path.stat().st_size:
            # a folder, or a word of test-00000-of-00001-a09b74b3.parquet and wiki.valid.txt; "" of none
            *folders, file = name.lower().split("/")
            words = re.split(r"[-_. ]", file.rpartition(".")[0])
            named = [SPLIT_OF[word] for word in (*folders, words[0], words[-1]) if word in SPLIT_OF]
            split_of[path] = (named or [""])[0]
    held_out = not alone and {"validation", "test"} & {*split_of.values()}
    return split_of if held_out else dict.fromkeys(split_of, "train")


def local_documents(source: Path, column: str, separator: str) -> dict[str, Documents]:
    """The documents of each split that a file or a folder names. UserError if there is text that is held out
    and none to train on."""
    split_of = text_files(source)
    chosen = {split: [path for path, own in split_of.items() if own == split] for split in SPLITS}
    if not chosen["train"]:
        names = ", ".join(path.name for path in split_of) or "no text"
        raise UserError(f"source {source} has {names} and nothing to train on")
    if left := [path for path, own in split_of.items() if not own]:
        print(f"not read: {len(left)} files of no split, {left[0]} for instance", file=sys.stderr)
    return {k: partial(file_documents, some, column, separator) for k, some in chosen.items() if some}


def file_documents(files: list[Path], column: str, separator: str) -> Iterator[Document]:
    """The documents of `files`: of text, what stands between two lines `separator`, and of the others the
    `column` of each row."""
    for path in files:
        kind = Path(path.name.removesuffix(".gz")).suffix
        if kind in TEXTS:
            parts = groupby(file_lines(path), lambda line: line.strip() == separator != "")
            for i, lines in enumerate((lines for ends, lines in parts if not ends), 1):
                yield Document(f"{path.name}:{i}" if i > 1 else path.name, lines)
        else:
            values = {".jsonl": jsonl_values, ".csv": csv_values, ".parquet": parquet_values}[kind]
            yield from column_documents(values(path, column), column, path.name, str(path))


# -----------------------------------------------------------------------------
# Rows


def jsonl_values(path: Path, column: str) -> Iterator[Any]:
    """The `column` of each row, an object a line. UserError naming a line that is none."""
    seen: dict[str, None] = {}
    with open_text(path) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    row = json.loads(line)
                    value = row.get(column)
                    f"{value}".encode()  # half of a surrogate pair is no text
                except (ValueError, AttributeError, RecursionError) as error:
                    raise UserError(f"line {number} is no row: {error}") from None
                seen |= dict.fromkeys(row)
                yield value
        if seen:
            check_column(column, seen)


def csv_values(path: Path, column: str) -> Iterator[str]:
    """The `column` of each row, as it stands there. UserError naming a row that has not as many cells as the
    first line has names."""
    with open_text(path) as file:
        rows = csv.reader(file, strict=True)
        names = next(rows, [])
        check_column(column, names)
        for row in filter(None, rows):
            if len(row) != len(names):
                at = f"the row that ends in line {rows.line_num}"
                raise UserError(f"{at} has {len(row)} cells, the first line {len(names)}")
            yield row[names.index(column)]


def parquet_values(path: Path, column: str) -> Iterator[Any]:
    """The `column` of each row."""
    from pyarrow.parquet import ParquetFile  # half a second to import

    with reading(path), ParquetFile(path) as file:
        check_column(column, file.schema_arrow.names)
        for batch in file.iter_batches(AT_ONCE, columns=[column]):
            yield from batch.column(0).to_pylist()


def check_column(column: str, names: Collection[str]) -> None:
    if column not in names:
        known = ", ".join(map(repr, names))
        raise UserError(f"it has no column {column!r}, but {known}: --column names one")


def column_documents(values: Iterable[Any], column: str, name: str, where: str) -> Iterator[Document]:
    """The text of each row; where it is null, there is none. UserError for any other value."""
    nulls = 0
    for i, value in enumerate(values, 1):
        text = value.decode() if isinstance(value, bytes) else value
        if isinstance(text, str):
            yield Document(f"{name}:{i}", bounded_lines(io.StringIO(text, newline="\n")))
        elif text is None:
            nulls += 1
        else:
            raise UserError(f"{where}: column {column!r} holds {text!r:.40}, which is no text")
    if nulls:
        say(f"{where}: {nulls} rows have no {column!r} and are left out")


@cache
def say(line: str) -> None:
    """A text is read several times."""
    print(line, file=sys.stderr)


def hub_documents(source: str, column: str) -> dict[str, Documents]:
    """The documents of each split of a data set on the Hugging Face hub, downloaded once into its cache.

    source  owner/name, or owner/name:configuration
    """
    name, _, configuration = source.partition(":")
    with reading(f"source {source}"):
        hub = load(name, configuration)
        columns = {str(split): hub[split].select_columns(column) for split in hub}
    if "train" in hub and (unused := hub.keys() - set(SPLITS)):
        print(f"not read: the splits {', '.join(sorted(unused))} of {source}", file=sys.stderr)

    def documents(split: str) -> Iterator[Document]:
        return column_documents(hub_values(columns[split], column), column, split, source)

    return {split: partial(documents, split) for split in columns}


def hub_values(rows: Any, column: str) -> Iterator[Any]:
    """The `column` of the rows of a data set on the hub."""
    for batch in rows.iter(AT_ONCE):
        yield from batch[column]
