"""Prepare your own text.

python data/text/prepare.py --source=FOLDER [--column=text] [--tokenizer=NAME] [--out=DIR] [--force]

FOLDER holds UTF-8 files at any depth: .txt and .md, each a document, .jsonl, .csv and .parquet, each row a
document in the given column; .txt, .md, .jsonl and .csv may be .gz. It may be one such file, or the name of a
data set on the Hugging Face hub: owner/name, or owner/name:configuration. NAME is gpt2, bytes, bpeN (N tokens
trained on the train split) or the path of a tokenizer.json.

A line <|endoftext|> ends a document of a file of text; --separator=LINE has another line do so, or none.

A file belongs to the split that a folder on its path is called, or that its name begins or ends with: train,
validation (valid, val, dev) or test. The hub's data sets have splits of their own. Where there is no test
split, half of the validation split's documents are. Where there is no validation split, or neither, whole
documents of the train split are chosen by a hash of their text: about 1% of the bytes for each. A single
document is cut into 90%, 5% and 5%. A blank line stands between two documents: no tokenizer here has an
end-of-text token.

The prepared folder has the names of the tokenizer and of the source: several texts stand side by side.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import hashlib
import io
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from glob import escape
from itertools import chain, groupby
from typing import Any

import numpy as np

from common.config import Text, cli, read
from common.errors import UserError, reading
from common.files import real_path
from common.hub import load
from common.log import progress_bar
from data.corpus import (
    SPLITS,
    Contents,
    Corpus,
    PrepareConfig,
    Split,
    bounded_lines,
    file_lines,
    read_batches,
)

TEXTS = (".txt", ".md")
BUILDERS = {".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}  # of the datasets library
ENDINGS = tuple(f"{kind}{gz}" for kind in (*TEXTS, *BUILDERS) for gz in ("", ".gz"))
ON_HUB = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?")  # owner/name, perhaps with a configuration
ROWS = 1000  # that are read at a time
HELD_OUT = 0.01  # share of the bytes, of validation and of test
CUT = 0.05  # share of a single document, of validation and of test
SPLIT_OF = {"train": "train", "test": "test"}
SPLIT_OF |= dict.fromkeys(("val", "valid", "validation", "dev"), "validation")

Document = Iterable[str]  # its lines, each with its "\n"; a long one in pieces
Documents = Callable[[], Iterator[Document]]  # starts a fresh pass


@dataclass
class OwnTextConfig(PrepareConfig):
    # fmt: off
    tokenizer: str = "bpe4096"      # bpeN: one of N tokens trained on the train split; gpt2; bytes;
    #                                 or the path of a tokenizer.json
    source: str = ""                # folder or file (.txt, .md, .jsonl, .csv, each perhaps .gz; .parquet),
    #                                 or a data set on the hub: owner/name or owner/name:configuration
    column: str = "text"            # of rows: of .jsonl, .csv, .parquet and the hub
    separator: Text = "<|endoftext|>"  # a line that ends a document of a file of text; empty: none does
    # fmt: on


class TextCorpus(Corpus):
    def folder_name(self, tokenizer: str, source: str) -> str:
        """bpe4096-novels for a source /home/me/novels."""
        name = real_path(source).name if source else ""
        kinds = "|".join(map(re.escape, (*TEXTS, *BUILDERS)))
        name = re.sub(rf"({kinds})(\.gz)?$", "", name).replace(":", "-")
        return f"{tokenizer}-{name}" if name else tokenizer

    def lasting_source(self, c: OwnTextConfig) -> str | None:
        """Without a source, whatever the folder was prepared from will do."""
        return None if c.source else ""

    def contents(self, c: OwnTextConfig) -> Contents:
        path = real_path(c.source)
        if c.source and path.exists():
            source, pools = str(path), local_documents(path, c.column, c.separator)
        elif ON_HUB.fullmatch(c.source):
            source, pools = c.source, hub_documents(c.source, c.column)
        else:
            raise FileNotFoundError(
                f"source {c.source!r}: give a file or folder of text, or owner/name of a data set on the hub"
            )
        lines = three_splits(source, pools)
        splits = {split: measured(split, lines[split]) for split in SPLITS}
        if empty := [split for split, text in splits.items() if not text.bytes]:
            raise UserError(f"source {source} has no text for {' and '.join(empty)}: three splits need some")
        return Contents(source, splits)


def measured(name: str, documents: Documents) -> Split:
    """The split of `documents`, read once: what is damaged is found before any work, and what has changed
    since a folder was prepared."""
    size, sha256, lines = 0, hashlib.sha256(), partial(joined, documents)
    for batch in read_batches(Split(lines), f"reading {name}"):
        raw = "".join(batch).encode()
        size += len(raw)
        sha256.update(raw)
    return Split(lines, size, sha256.hexdigest())


def joined(documents: Documents) -> Iterator[str]:
    """The lines of all `documents`, each ended by a line end, with a blank line between two."""
    between = ""
    for document in documents():
        line = ""
        for line in document:
            if between:
                yield between
                between = ""
            yield line
        if line:
            between = "\n" if line.endswith("\n") else "\n\n"
    if between == "\n\n":
        yield "\n"


# -----------------------------------------------------------------------------
# Documents


def local_documents(source: Path, column: str, separator: str) -> dict[str, Documents]:
    """The documents of each split that a file or a folder names; all are "train" where it holds none out.

    The order is that of the files' paths. UserError if there is text that is held out and none to train on.
    """
    alone, split_of = source.is_file(), {}
    # the same order, compressed or not
    for path in sorted([source] if alone else source.rglob("*"), key=lambda p: str(p).removesuffix(".gz")):
        name = path.relative_to(source.parent if alone else source).as_posix().removesuffix(".gz")
        hidden = any(part.startswith(".") for part in name.split("/")) or path.name == "README.md"
        if path.is_file() and path.name.endswith(ENDINGS) and not hidden and path.stat().st_size:
            split_of[path] = "" if alone else named_split(name)
    if not {"validation", "test"} & {*split_of.values()}:
        split_of = dict.fromkeys(split_of, "train")
    chosen = {split: [path for path, own in split_of.items() if own == split] for split in SPLITS}
    if not chosen["train"]:
        names = ", ".join(path.name for path in split_of) or "no text"
        raise UserError(f"source {source} has {names} and nothing to train on")
    if left := [path for path, own in split_of.items() if not own]:
        print(f"not read: {len(left)} files of no split, {left[0]} for instance", file=sys.stderr)
    return {k: partial(file_documents, some, column, separator) for k, some in chosen.items() if some}


def named_split(name: str) -> str:
    """The split that a folder of the path `name` is called, or that the file's name begins or ends with, as
    in test-00000-of-00001-a09b74b3.parquet and wiki.valid.txt; "" of none."""
    *folders, file = name.lower().split("/")
    words = re.split(r"[-_. ]", file.rpartition(".")[0])
    return next((SPLIT_OF[word] for word in (*folders, words[0], words[-1]) if word in SPLIT_OF), "")


def file_documents(files: list[Path], column: str, separator: str) -> Iterator[Document]:
    """The documents of `files`: of text, what stands between two lines `separator`, and of the others the
    `column` of each row.

    Files of text are not read by the datasets library, which makes "\\r\\n" a "\\n".
    """
    for path in files:
        kind = Path(path.name.removesuffix(".gz")).suffix
        if kind in TEXTS:
            for ends, lines in groupby(file_lines(path), lambda line: line.strip() == separator != ""):
                if not ends:
                    yield lines
        else:
            with reading(path):
                rows = read_rows(BUILDERS[kind], {"train": [path]}, column)["train"]
                yield from column_documents(rows, column, str(path))


def read_rows(builder: str, files: Mapping[str, list[Path]], column: str) -> Any:
    """The rows of each split of files, by a builder of the datasets library, which reads them as they are
    asked for and copies none into its cache."""
    from datasets import Features, Value, load_dataset  # seconds to import
    from datasets.utils import logging

    logging.set_verbosity(logging.CRITICAL)  # an error is one line, ours
    exact: dict[str, dict[str, Any]] = {"json": {}, "parquet": {"columns": [column]}}
    # each value as it stands there: pandas would read numbers, and NA as nothing
    text = Features({column: Value("string")})
    exact["csv"] = {"usecols": [column], "features": text, "na_filter": False}
    names = {split: [escape(str(path)) for path in paths] for split, paths in files.items()}
    return load_dataset(builder, data_files=names, streaming=True, **exact[builder])


def column_documents(rows: Any, column: str, where: str) -> Iterator[Document]:
    """The text of each row; where it is null, there is none. UserError for any other value."""
    nulls = 0
    for batch in rows.iter(ROWS):
        for value in batch[column]:
            text = value.decode() if isinstance(value, bytes) else value
            if isinstance(text, str):
                yield bounded_lines(io.StringIO(text, newline="\n"))
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
        columns = {split: hub[split].select_columns(column) for split in hub}
    if "train" in hub and (unused := hub.keys() - set(SPLITS)):
        print(f"not read: the splits {', '.join(sorted(unused))} of {source}", file=sys.stderr)
    return {str(split): partial(column_documents, rows, column, source) for split, rows in columns.items()}


# -----------------------------------------------------------------------------
# Splits


def three_splits(source: str, pools: dict[str, Documents]) -> dict[str, Documents]:
    """All three splits of a source that has the documents `pools` of some."""
    if "train" not in pools:  # then whatever there is, is divided
        some = [*pools.values()]
        pools = {"train": lambda: chain.from_iterable(pool() for pool in some)}
    if not pools.keys() & {"validation", "test"}:
        return divided(source, pools["train"], SPLITS)
    if "test" not in pools:
        pools |= divided(source, pools["validation"], ("validation", "test"), 0.5, 0.5)
    if "validation" not in pools:
        pools |= divided(source, pools["train"], ("train", "validation"))
    return pools


def divided(
    source: str, documents: Documents, splits: Sequence[str], share: float = HELD_OUT, cut: float = CUT
) -> dict[str, Documents]:
    """Whole documents for each of the `splits`: all but the first get a `share` of the bytes.

    In the order of the hashes of their texts documents go to these, until each has its share. The first has
    the rest, and the largest. So equal texts are in one split, in whatever order and files they come. A
    document takes 16 bytes of memory meanwhile. A single document is `cut`: so much of it is each of the
    others, at its end.
    """
    sizes, hashes = array("q"), array("Q")
    for document in progress_bar(documents(), "sizes", unit=" documents"):
        size, sha256 = 0, hashlib.sha256()
        for line in document:
            raw = line.encode()
            size += len(raw)
            sha256.update(raw)
        sizes.append(size)
        hashes.append(int.from_bytes(sha256.digest()[:8]))
    texts, which = np.unique(np.array(hashes), return_inverse=True)
    total = np.bincount(which, np.array(sizes), len(texts))  # bytes of each text, with its copies
    if (total > 0).sum() == 1:
        say(f"{source} is a single document: {', '.join(splits)} are parts of it, cut at line ends")
        ends = [1 - cut * left for left in reversed(range(len(splits)))]
        bounds = zip([0, *ends], ends)
        return {split: partial(part_of, documents, max(sizes), *at) for split, at in zip(splits, bounds)}
    owner, taken = np.zeros(len(texts), np.int8), np.zeros(len(splits) - 1)
    enough = share * total.sum()
    for i in np.flatnonzero(total * (np.arange(len(texts)) != total.argmax())):
        least = int(taken.argmin())
        if taken[least] >= enough:
            break
        owner[i] = 1 + least
        taken[least] += total[i]

    def selected(number: int) -> Iterator[Document]:
        return (document for document, at in zip(documents(), which) if owner[at] == number)

    return {split: partial(selected, i) for i, split in enumerate(splits)}


def part_of(documents: Documents, size: int, start: float, stop: float) -> Iterator[Document]:
    """The lines of a single document that begin between two shares of its `size` in bytes. Longer ones than a
    50th of all are in pieces, which end before a space if there is one."""

    def lines() -> Iterator[str]:
        at, piece = 0, max(64, size // 400)
        for line in chain.from_iterable(documents()):
            while line:
                end = len(line)
                if end > max(64, size // 50):
                    end = max(line.rfind(" ", 1, piece), 0) or piece
                if start * size <= at < stop * size:
                    yield line[:end]
                at += len(line[:end].encode())
                line = line[end:]

    yield lines()


corpus = TextCorpus(__file__, OwnTextConfig)


def main(argv: list[str]) -> int:
    return corpus.command(read(OwnTextConfig, argv, __doc__))


if __name__ == "__main__":
    cli(main)
