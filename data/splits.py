"""A split of a text: where its lines come from, and how they become a token file."""

import gzip
import hashlib
import os
from codecs import BOM_UTF8
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from common import errors
from common.log import Progress
from data.tokenizers import Tokenizer
from data.tokens import TokenFile, write_tokens

BATCH = 2**18  # characters of text that are read, and tokenised, at a time
# Share of a text's lines that may not come back from its tokens. With more, a model scores another text than
# the original, whose words and bytes then do not say how long the scored one is.
CHANGED = 0.01


class Split(NamedTuple):
    lines: Callable[[], Iterable[str]]  # starts a fresh pass over the text, line by line, each with its "\n"
    bytes: int | None = None  # UTF-8 size of the text, where it is known before reading
    sha256: str | None = None  # of the text, likewise
    # A text may be sequences of `length` tokens (0: it is not), each of which begins with `given` tokens that
    # are given and never predicted
    length: int = 0
    given: int = 0
    # and, for classifier-free guidance: in which share of training sequences the token `absent` takes their
    # place. Training draws anew at each visit which ones (data.batches.TextSource)
    dropped: float = 0.0
    absent: int = -1


def size_read(path: Path) -> int:
    """The bytes that `reading` gives of a file that is no .gz."""
    with path.open("rb") as file:
        marked = file.read(len(BOM_UTF8)) == BOM_UTF8
    return path.stat().st_size - marked * len(BOM_UTF8)


@contextmanager
def reading(path: Path) -> Iterator[IO[str]]:
    """A UTF-8 file, or a .gz of one, byte for byte but for a mark at its start (BOM): only "\\n" ends a line,
    "\\r" is a character in it.

    UserError naming it when what is read turns out to be damaged.
    """
    open_file = gzip.open if path.suffix == ".gz" else open
    with errors.reading(path), open_file(path, "rt", encoding="utf-8-sig", newline="\n") as file:
        yield file


def file_lines(path: Path) -> Iterator[str]:
    """The lines of the file at `path`, see `reading`. One of more than BATCH characters comes in pieces."""
    with reading(path) as file:
        yield from bounded_lines(file)


def bounded_lines(file: IO[str]) -> Iterator[str]:
    """The lines of `file`; one of more than BATCH characters in pieces of at most three times as many.

    A piece ends before a space if it has one: tokenizers join a space to the word behind it.
    """
    rest = ""
    while line := rest + file.readline(BATCH):
        rest = ""
        if len(line) >= BATCH and not line.endswith("\n"):
            end = len(line[: line.rfind(" ") + 1].rstrip(" "))
            if end > 0:
                line, rest = line[:end], line[end:]
        yield line


def take(lines: Iterator[str]) -> list[str]:
    """The next lines, about BATCH characters of them; [] at the end."""
    batch, size = [], 0
    for line in lines:
        batch.append(line)
        size += len(line)
        if size >= BATCH:
            break
    return batch


def read_batches(split: Split, label: str) -> Iterator[list[str]]:
    """The lines of `split` in lists that fit in memory, with a progress bar in bytes on stderr."""
    lines = iter(split.lines())
    with Progress(total=split.bytes, desc=label, unit="B", unit_scale=True) as bar:
        while batch := take(lines):
            yield batch
            bar.update(sum(len(line.encode()) for line in batch))


def encode_batch(tokenizer: Tokenizer, lines: list[str]) -> tuple[np.ndarray, int]:
    """Ids of `lines`, and how many of the lines do not come back from them."""
    if tokenizer.by_line:
        return tokenizer.encode_each(lines), 0
    text = "".join(lines)
    ids = tokenizer.encode_each([text])
    before, after = text.split("\n"), tokenizer.decode(ids).split("\n")
    if len(before) != len(after):  # line ends are among what is lost
        return ids, len(lines)
    return ids, sum(a != b for a, b in zip(before, after))


def tokenise_split(
    path: Path, split: Split, tokenizer: Tokenizer, source: str, official: Mapping[str, Any] | None = None
) -> TokenFile:
    """Tokenise `split` into the token file `path`, counting and hashing the text on the way.

    Its info has no "words" and "bytes" where the tokens do not hold the text: see CHANGED.

    official  what the info of the whole official split says ("words", "sha256", ...); "complete" is whether
              all of it agrees, None when there is nothing to compare with
    """
    counts = {"words": 0, "lines": 0, "bytes": 0, "changed_lines": 0}
    sha256 = hashlib.sha256()

    def arrays() -> Iterator[np.ndarray]:
        cores = os.cpu_count() or 1
        pending: deque[Future[tuple[np.ndarray, int]]] = deque()

        def next_ids() -> np.ndarray:
            ids, changed = pending.popleft().result()
            counts["changed_lines"] += changed
            return ids

        with ThreadPoolExecutor(cores) as pool:
            for lines in read_batches(split, path.stem):
                pending.append(pool.submit(encode_batch, tokenizer, lines))
                text = "".join(lines)
                raw = text.encode()
                sha256.update(raw)
                counts["words"] += len(text.split())
                counts["lines"] += raw.count(b"\n")
                counts["bytes"] += len(raw)
                if len(pending) > 2 * cores:  # memory stays bounded, and no core waits for this loop
                    yield next_ids()
            while pending:
                yield next_ids()

    def info() -> dict[str, Any]:
        seen = {**counts, "sha256": sha256.hexdigest()}
        complete = all(seen[key] == value for key, value in official.items()) if official else None
        if counts["changed_lines"] > CHANGED * counts["lines"]:
            del seen["words"], seen["bytes"]
        return {
            "tokenizer": tokenizer.name,
            "fingerprint": tokenizer.fingerprint,
            **seen,
            **({"length": split.length, "given": split.given} if split.length else {}),
            **({"dropped": split.dropped, "absent": split.absent} if split.dropped else {}),
            "source": source,
            "complete": complete,
        }

    return write_tokens(path, arrays(), tokenizer.vocab_size, info)
