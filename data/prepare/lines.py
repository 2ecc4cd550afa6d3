"""Lines of text: from files, in pieces where they are long, in batches."""

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from common.errors import reading

BATCH = 2**18  # characters of text that are read, and tokenised, at a time


@contextmanager
def open_text(path: Path) -> Iterator[IO[str]]:
    """A UTF-8 file, or a .gz of one, byte for byte but for a mark at its start (BOM): only "\\n" ends a line,
    "\\r" is a character in it.

    UserError naming it when what is read turns out to be damaged.
    """
    open_file = gzip.open if path.suffix == ".gz" else open
    with reading(path), open_file(path, "rt", encoding="utf-8-sig", newline="\n") as file:
        yield file


def file_lines(path: Path) -> Iterator[str]:
    """The lines of the file at `path`, see `open_text`. One of more than BATCH characters comes in pieces."""
    with open_text(path) as file:
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
