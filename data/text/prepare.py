"""Prepare your own text.

python data/text/prepare.py --source=FOLDER [--column=text] [--tokenizer=NAME] [--out=DIR] [--force]

FOLDER holds UTF-8 files at any depth: .txt and .md, each a document, .jsonl, .csv and .parquet, each row a
document in the given column; .txt, .jsonl and .csv may be .gz. It may be one such file, or the name of a data
set on the Hugging Face hub: owner/name, or owner/name:configuration. NAME is gpt2, bytes, bpeN (N tokens
trained on the train split) or the path of a tokenizer.json.

A line <|endoftext|> ends a document of a file of text; --separator=LINE has another line do so, or none.

The folders train, validation and test in FOLDER are the splits, or files of these names, or the splits of the
hub. Where there is no test split, half of the validation split's documents are. Where there is no validation
split, or neither, whole documents of the train split are chosen by a hash of the path of a file of text or of
the text of a row: about 1% of the bytes for each. A single document is cut into 90%, 5% and 5%.
A blank line stands between two documents: no tokenizer here has an end-of-text token.

The prepared folder has the names of the tokenizer and of the source: several texts stand side by side.
"""

import hashlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from common.config import Text, cli, read
from common.errors import UserError
from common.files import real_path
from common.log import Progress
from data.corpus import Contents, Corpus
from data.prepared import SPLITS
from data.settings import PrepareConfig
from data.splits import Split, read_batches
from data.text.documents import ON_HUB, Document, Documents, file_documents, find_files, hub_documents


@dataclass
class TextConfig(PrepareConfig):
    # fmt: off
    tokenizer: str = "bpe4096"      # bpeN: one of N tokens trained on the train split; gpt2; bytes;
    #                                 or the path of a tokenizer.json
    source: str = ""                # folder or file (.txt, .jsonl, .csv, each perhaps .gz; .md, .parquet),
    #                                 or a data set on the hub: owner/name or owner/name:configuration
    column: str = "text"            # of rows: of .jsonl, .csv, .parquet and the hub
    separator: Text = "<|endoftext|>"  # a line that ends a document of a file of text; empty: none does
    # fmt: on


HELD_OUT = 0.01  # share of the bytes, of validation and of test
CUT = 0.05  # share of a single document, of validation and of test
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
    """The files of each split that there is: those in folders train, validation and test, else those of these
    names.

    None if there are no such folders, and no file has the name of a held-out split. UserError if there is
    none to train on: a user's test file is never trained on.
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
    held_out = [name for split in ("validation", "test") for name in chosen[split]]
    if not has_folders and (not held_out or source.is_file()):
        return None
    if held_out and not chosen["train"]:
        raise UserError(
            f"source {source} has {', '.join(held_out)} and nothing to train on: add train.txt, say, or "
            "rename or move what is no split"
        )
    chosen = {split: some for split, some in chosen.items() if some}
    outside = len(files) - sum(map(len, chosen.values()))
    if outside:
        print(f"not read: {outside} text files outside train, validation and test", file=sys.stderr)
    return chosen


def split_by_document(
    source: str, documents: Documents, splits: Sequence[str], share: float = HELD_OUT, cut: float = CUT
) -> dict[str, Lines]:
    """The lines of each of the `splits`: of whole documents, all but the first have a `share` of the bytes.

    In the order of their keys documents go to these, until each has its share. The first has the rest, and
    the largest. Memory does not grow with their number: what is kept are the sizes of ranges of keys, so fine
    that a thousand documents have a range each. A single document is `cut`: so much of it is each of the
    others, at its end.
    """
    ranges = np.zeros(RANGES, np.int64)  # bytes
    count, largest, kept = 0, 0, b""  # the largest document's bytes and key
    for document in Progress(documents(), "sizes", unit=" documents"):
        size = sum(len(line.encode()) for line in document.lines)
        ranges[range_of(document.key)] += size
        count += size > 0
        if size > largest:
            largest, kept = size, document.key
    if count == 1:
        ends = [1 - cut * left for left in reversed(range(len(splits)))]
        bounds = list(zip(splits, [0, *ends], ends))
        parts = ", ".join(f"{start:.0%} to {stop:.0%} {split}" for split, start, stop in bounds)
        print(f"{source} is a single document: {parts}, cut at line ends or spaces", file=sys.stderr)
        return {split: partial(part_of, documents, largest, *bound) for split, *bound in bounds}
    enough = share * ranges.sum()
    ranges[range_of(kept)] = 0  # the whole range is in the first: another copy of the largest may be in it
    owner = np.zeros(RANGES, np.int8)  # the split's place
    taken = [0] * (len(splits) - 1)  # bytes
    for i in np.flatnonzero(ranges):
        least = int(np.argmin(taken))
        if taken[least] >= enough:
            break
        owner[i] = 1 + least
        taken[least] += int(ranges[i])

    def selected(number: int) -> Iterator[Document]:
        return (document for document in documents() if owner[range_of(document.key)] == number)

    return {split: partial(joined, partial(selected, i)) for i, split in enumerate(splits)}


def range_of(key: bytes) -> int:
    """Which of RANGES a document's key lies in."""
    return int.from_bytes(key[:4]) * RANGES >> 32


def part_of(documents: Documents, size: int, start: float, stop: float) -> Iterator[str]:
    """The lines that begin between two shares of the `size` bytes. Longer ones than a 50th of all are in
    pieces, which end before a space if there is one."""
    at, piece = 0, max(64, size // 400)
    for line in joined(documents):
        while line:
            end = len(line)
            if end > max(64, size // 50):
                end = max(line.rfind(" ", 1, piece), 0) or piece
            if at >= stop * size:
                return
            if at >= start * size:
                yield line[:end]
            at += len(line[:end].encode())
            line = line[end:]


def three_splits(source: str, pools: dict[str, Documents]) -> dict[str, Lines]:
    """The lines of each split of a source that has the documents `pools` of some splits."""
    if "train" not in pools:  # then whatever there is, is divided
        pools = {"train": partial(chained, list(pools.values()))}
    ready: dict[str, Lines] = {split: partial(joined, pools[split]) for split in SPLITS if split in pools}
    if not ready.keys() - {"train"}:
        return split_by_document(source, pools["train"], SPLITS)
    if "test" not in pools:
        print(f"{source} has no split test: half of validation is", file=sys.stderr)
        ready |= split_by_document(source, pools["validation"], ("validation", "test"), 0.5, 0.5)
    if "validation" not in pools:
        print(f"{source} has no split validation: documents of train are", file=sys.stderr)
        ready |= split_by_document(source, pools["train"], ("train", "validation"))
    return ready


def local_splits(source: Path, column: str, separator: str) -> dict[str, Lines]:
    """The lines of each split of a file or a folder."""
    files = find_files(source)
    chosen = split_by_name(source, files) or {"train": files}
    pools: dict[str, Documents] = {
        k: partial(file_documents, some, column, separator) for k, some in chosen.items()
    }
    return three_splits(str(source), pools)


def hub_splits(source: str, column: str) -> dict[str, Lines]:
    """The lines of each split of a data set on the hub: its own, and what it lacks out of the others."""
    documents = hub_documents(source, column)
    if "train" in documents and (unused := documents.keys() - set(SPLITS)):
        print(f"not read: the splits {', '.join(sorted(unused))} of {source}", file=sys.stderr)
    return three_splits(source, documents)


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
        name = real_path(source).name if source else ""
        name = re.sub(r"\.(txt|md|jsonl|csv|parquet)(\.gz)?$", "", name).replace(":", "-")
        return f"{tokenizer}-{name}" if name else tokenizer

    def lasting_source(self, c: TextConfig) -> str | None:
        """Without a source, whatever the folder was prepared from will do."""
        return None if c.source else ""

    def contents(self, c: TextConfig) -> Contents:
        if not c.source:
            raise UserError("dataset text is your own text: say where it is with --source=FOLDER")
        path = real_path(c.source)
        if path.exists():
            source, lines = str(path), local_splits(path, c.column, c.separator)
        elif ON_HUB.fullmatch(c.source):
            source, lines = c.source, hub_splits(c.source, c.column)
        else:
            raise FileNotFoundError(
                f"source {c.source} is not there: give a folder or a file of text, or owner/name of a data "
                "set on the hub"
            )
        splits = {split: measured(split, lines[split]) for split in SPLITS}
        empty = [split for split, text in splits.items() if not text.bytes]
        if empty:
            raise UserError(
                f"source {source} has no text for {' and '.join(empty)} (texts are cut at line ends): give "
                "it more, or put some into the folders train/, validation/ and test/, all three"
            )
        return Contents(source, splits)


corpus = TextCorpus(__file__, TextConfig)


def main(argv: list[str]) -> int:
    return corpus.command(read(TextConfig, argv, __doc__))


if __name__ == "__main__":
    cli(main)
