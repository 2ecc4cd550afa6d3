"""Prepare your own text.

python data/text/prepare.py --source=FOLDER [--column=text] [--tokenizer=NAME] [--out=DIR] [--force]

FOLDER holds UTF-8 files at any depth: .txt, each a document, .jsonl and .parquet, each row a document in the
given column; .txt and .jsonl may be .gz. It may be one such file, or the name of a data set on the Hugging
Face hub: owner/name, or owner/name:configuration. NAME is gpt2, bytes, bpeN (N tokens trained on the train
split) or the path of a tokenizer.json.

The folders train, validation and test in FOLDER are the splits, or files of these names, or the splits of the
hub. Where there are none, whole documents are chosen by a hash of the path of a .txt file or of the text of a
row: about 1% of the bytes for validation and 1% for test. A single document is cut into 90%, 5% and 5%.
A blank line stands between two documents: no tokenizer here has an end-of-text token.

The prepared folder has the names of the tokenizer and of the source: several texts stand side by side.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from data.settings import PrepareConfig
from runtime.door import Program


@dataclass
class TextConfig(PrepareConfig):
    # fmt: off
    tokenizer: str = "bpe4096"      # bpeN: one of N tokens trained on the train split; gpt2; bytes;
    #                                 or the path of a tokenizer.json
    source: str = ""                # folder or file (.txt, .jsonl, each perhaps .gz; .parquet),
    #                                 or a data set on the hub: owner/name or owner/name:configuration
    column: str = "text"            # of rows: of .jsonl, .parquet and the hub
    # fmt: on


program = Program(__name__, __doc__, TextConfig)

import hashlib
import re
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from data.corpus import Contents, Corpus
from data.prepared import SPLITS, read_meta
from data.splits import Split, read_batches
from data.text.documents import (
    ENDINGS,
    ON_HUB,
    Document,
    Documents,
    file_documents,
    find_files,
    hub_documents,
)
from runtime.configurator import cli
from runtime.errors import UserError
from runtime.progress import Progress

HELD_OUT = 0.01  # share of the bytes, of validation and of test
PARTS = {"train": (0, 0.9), "validation": (0.9, 0.95), "test": (0.95, 1)}  # of a single document
RANGES = 2**22  # of keys; 36 MB
# first or last word of a file's name, as in test-00000-of-00001-a09b74b3.parquet or wiki.valid.txt -> split
SPLIT_OF = {"train": "train", "test": "test"}
SPLIT_OF |= dict.fromkeys(("val", "valid", "validation", "dev"), "validation")

Lines = Callable[[], Iterator[str]]  # starts a fresh pass over a split's text


def joined(documents: Documents) -> Iterator[str]:
    """The lines of all `documents`, each ended by a line end, with a blank line between two."""
    between = ""
    for document in documents():
        line = ""
        for line in document.lines:
            if between:
                yield between
                between = ""
            yield line
        if line and not line.endswith("\n"):
            yield "\n"
        if line:
            between = "\n"


def split_by_name(source: Path, files: dict[str, Path]) -> dict[str, dict[str, Path]] | None:
    """The files of each split: those in folders train, validation and test, else those of these names.

    None if there are no such folders, and no file has the name of a held-out split. UserError if files of
    these names are no three splits: a user's test file is never trained on.
    """

    # val/ or dev/ may be anything, but beside train/
    folders = SPLIT_OF if (source / "train").is_dir() else dict(zip(SPLITS, SPLITS))

    def folder(name: str) -> str:
        return next((folders[part] for part in name.split("/")[:-1] if part in folders), "")

    def file(name: str) -> str:
        stem = name.rpartition("/")[2].removesuffix(".gz").rpartition(".")[0]
        words = re.split(r"[-_. ]", stem.lower())
        return SPLIT_OF.get(words[0]) or SPLIT_OF.get(words[-1]) or ""

    # below the top a folder `train` alone, as the hub has it, holds nothing out
    on_top = any((source / split).is_dir() for split in SPLITS)
    has_folders = on_top or any(folder(name) in ("validation", "test") for name in files)
    split_of = folder if has_folders else file
    chosen = {split: {n: p for n, p in files.items() if split_of(n) == split} for split in SPLITS}
    if not has_folders and not all(chosen.values()):
        named = [name for split in ("validation", "test") for name in chosen[split]]
        if not named or source.is_file():
            return None
        lacking = " and ".join(split for split in SPLITS if not chosen[split])
        raise UserError(
            f"source {source} has {', '.join(named)} and no file for {lacking}: add it (train.txt, "
            "validation.txt and test.txt, say), or rename or move what is no split"
        )
    outside = len(files) - sum(map(len, chosen.values()))
    if outside:
        print(f"not read: {outside} text files outside train, validation and test", file=sys.stderr)
    return chosen


def split_by_document(source: str, documents: Documents, missing: list[str]) -> dict[str, Lines]:
    """The lines of the train split and of the `missing` ones, which whole documents are taken out for.

    In the order of their keys documents go to the missing splits, until each has its share of the bytes. The
    others train, and so does the largest. Memory does not grow with their number: what is kept are the sizes
    of ranges of keys, so fine that a thousand documents have a range each. A single document is cut.
    """
    ranges = np.zeros(RANGES, np.int64)  # bytes
    count, largest, kept = 0, 0, b""  # the largest document's bytes and key
    for document in Progress(documents(), "sizes", unit=" documents"):
        size = sum(len(line.encode()) for line in document.lines)
        ranges[range_of(document.key)] += size
        count += size > 0
        if size > largest:
            largest, kept = size, document.key
    if count == 1 and len(missing) == 2:
        parts = ", ".join(f"{start:.0%} to {stop:.0%} {split}" for split, (start, stop) in PARTS.items())
        print(f"{source} is a single document: {parts}, cut at line ends", file=sys.stderr)
        return {split: partial(part_of, documents, largest, *PARTS[split]) for split in SPLITS}
    if count <= len(missing):
        raise UserError(
            f"source {source} has {count} documents that are not empty ({', '.join(ENDINGS)}), too few for "
            "three splits: give it more, or the folders train/, validation/ and test/"
        )
    enough = HELD_OUT * ranges.sum()
    ranges[range_of(kept)] = 0  # the whole range trains: another copy of the largest may be in it
    owner = np.zeros(RANGES, np.int8)  # 1 + the split's place in `missing`
    taken = [0] * len(missing)  # bytes
    for i in np.flatnonzero(ranges):
        least = int(np.argmin(taken))
        if taken[least] >= enough:
            break
        owner[i] = 1 + least
        taken[least] += int(ranges[i])

    def selected(number: int) -> Iterator[Document]:
        return (document for document in documents() if owner[range_of(document.key)] == number)

    return {split: partial(joined, partial(selected, i)) for i, split in enumerate(("train", *missing))}


def range_of(key: bytes) -> int:
    """Which of RANGES a document's key lies in."""
    return int.from_bytes(key[:4]) * RANGES >> 32


def part_of(documents: Documents, size: int, start: float, stop: float) -> Iterator[str]:
    """The lines that begin between two shares of the `size` bytes."""
    at = 0
    for line in joined(documents):
        if at >= stop * size:
            return
        if at >= start * size:
            yield line
        at += len(line.encode())


def local_splits(source: Path, column: str) -> dict[str, Lines]:
    """The lines of each split of a file or a folder."""
    files = find_files(source)
    chosen = split_by_name(source, files)
    if chosen is None:
        return split_by_document(str(source), partial(file_documents, files, column), ["validation", "test"])
    return {split: partial(joined, partial(file_documents, files, column)) for split, files in chosen.items()}


def hub_splits(source: str, column: str) -> dict[str, Lines]:
    """The lines of each split of a data set on the hub: its own, and what it lacks out of the others."""
    documents = hub_documents(source, column)
    if "train" not in documents:  # then whatever there is, is divided
        documents = {"train": partial(chained, list(documents.values()))}
    elif unused := documents.keys() - set(SPLITS):
        print(f"not read: the splits {', '.join(sorted(unused))} of {source}", file=sys.stderr)
    ready: dict[str, Lines] = {
        split: partial(joined, documents[split]) for split in SPLITS if split in documents
    }
    missing = [split for split in SPLITS if split not in ready]
    if not missing:
        return ready
    print(
        f"{source} has no split {' and '.join(missing)}: taken by document from the others", file=sys.stderr
    )
    return ready | split_by_document(source, documents["train"], missing)


def chained(pools: list[Documents]) -> Iterator[Document]:
    """The documents of several passes, one after the other."""
    return (document for pool in pools for document in pool())


def measured(name: str, lines: Lines) -> Split:
    """The split of `lines`, read once.

    What is damaged is found before any work, and what has changed since a folder was prepared.
    """
    size, sha256 = 0, hashlib.sha256()
    for batch in read_batches(Split(lines), f"reading {name}"):
        raw = "".join(batch).encode()
        size += len(raw)
        sha256.update(raw)
    return Split(lines, size, sha256.hexdigest())


class TextCorpus(Corpus[TextConfig]):
    def folder_name(self, tokenizer: str, source: str) -> str:
        """bpe4096-novels for a source /home/me/novels."""
        name = Path(source).expanduser().resolve().name if source else ""
        name = re.sub(r"\.(txt|jsonl|parquet)(\.gz)?$", "", name).replace(":", "-")
        return f"{tokenizer}-{name}" if name else tokenizer

    def lasting_source(self, c: TextConfig) -> str | None:
        """Without a source, whatever the folder was prepared from will do."""
        return None if c.source else ""

    def contents(self, c: TextConfig) -> Contents:
        if not c.source:
            raise UserError("dataset text is your own text: say where it is with --source=FOLDER")
        path = Path(c.source).expanduser().resolve()
        if path.exists():
            source, lines = str(path), local_splits(path, c.column)
        elif ON_HUB.fullmatch(c.source):
            source, lines = c.source, hub_splits(c.source, c.column)
        else:
            raise FileNotFoundError(
                f"source {c.source} is not there: give a folder or a file of text, or owner/name of a data "
                "set on the hub"
            )
        if not c.force:
            refuse_other_source(Path(c.out), source)  # before all of the text is read
        splits = {split: measured(split, lines[split]) for split in SPLITS}
        empty = [split for split, text in splits.items() if not text.bytes]
        if empty:
            raise UserError(
                f"source {source} has no text for {' and '.join(empty)} (texts are cut at line ends): give "
                "it more, or put some into the folders train/, validation/ and test/, all three"
            )
        return Contents(source, splits)


def refuse_other_source(out: Path, source: str) -> None:
    """UserError if the folder `out` was prepared from another source."""
    before = read_meta(out).get("source", source)
    if before != source:
        raise UserError(
            f"{out} was prepared from source {before!r}, not {source!r}: rename one of the two (a prepared "
            "folder has its source's name, without .txt, .jsonl or .parquet), or run data/text/prepare.py "
            "with --force to replace it, or with another --out"
        )


corpus = TextCorpus(__file__, TextConfig)
command = program(corpus.command)

if __name__ == "__main__":
    cli(command)()
