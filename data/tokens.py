"""Token files: the ids of a prepared folder's splits, mapped into memory, and what its manifest says of them.

The file is a 32-byte little-endian header (magic, version, bytes per id, count, 8 reserved bytes), then ids.
manifest.json (common/manifest.py) holds the SHA-256 of each file, which is compared whenever one is opened.
"""

import shlex
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from common.config import Positive, checked
from common.errors import UserError, reading
from common.files import replacing
from common.manifest import NAME as MANIFEST
from common.manifest import check_file, read_manifest

SPLITS = ("train", "validation", "test")
SplitName = Literal["train", "validation", "test"]
MAGIC, VERSION = b"NHTOKENS", 1
HEADER = struct.Struct("<8sIIQ8x")  # magic, version, bytes per id, number of ids

# what every prepared folder's manifest has, and of which type it is
MADE = dict[str, Any](source=str, tokenizer=str, fingerprint=str, vocab_size=Positive)
MADE["splits"] = dict[SplitName, dict[str, Any]]


class TokenFile(NamedTuple):
    ids: np.memmap  # (tokens,) uint16 or uint32, read-only
    info: dict[str, Any]  # what the manifest says of the split, and of all
    path: Path

    @property
    def words(self) -> int | None:
        """Words and line ends, what perplexity a word is counted by; None for a corpus that has none."""
        return self.info["words"] + self.info["lines"] if "words" in self.info else None

    @property
    def given(self) -> int:
        """How many tokens at the start of each sequence are given, and never predicted; 0: none."""
        return self.info.get("given", 0)

    @property
    def bytes(self) -> int | None:
        """UTF-8 size of the original text; None for a corpus that is no text."""
        return self.info.get("bytes")


def id_dtype(vocab_size: int) -> np.dtype:
    """The smallest of uint16 and uint32 (little-endian) that holds ids below vocab_size."""
    return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


def write_tokens(path: str | Path, arrays: Iterable[np.ndarray], vocab_size: int) -> np.memmap:
    """Writes the ids of `arrays`, one after the other, to `path`; the ids as `open_tokens` has them.

    arrays      integer arrays of any length, held in memory one at a time
    vocab_size  every id must lie below it; up to 65,536 an id takes 2 bytes, else 4

    UserError for ids out of range and for no ids at all. An OSError (a full disk) leaves nothing behind.
    """
    path, dtype, count = Path(path), id_dtype(vocab_size), 0
    with replacing(path) as file:
        file.write(bytes(HEADER.size))  # no magic yet: what a crash leaves is not a token file
        for ids in arrays:
            if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
                raise UserError(f"{path}: ids {ids.min()} to {ids.max()} do not fit vocab_size {vocab_size}")
            file.write(ids.astype(dtype).tobytes())
            count += ids.size
        if not count:
            raise UserError(f"{path}: no tokens to write: is the text empty?")
        file.seek(0)
        file.write(HEADER.pack(MAGIC, VERSION, dtype.itemsize, count))
    return map_ids(path, vocab_size)


def map_ids(path: Path, vocab_size: int) -> np.memmap:
    """The ids of a token file. UserError if it is none of this vocabulary."""
    with reading(path), path.open("rb") as file:
        dtype = id_dtype(vocab_size)
        count = (path.stat().st_size - HEADER.size) // dtype.itemsize
        if file.read(HEADER.size) != HEADER.pack(MAGIC, VERSION, dtype.itemsize, max(0, count)):
            raise UserError(f"it is no token file of a vocabulary of {vocab_size}")
        return np.memmap(path, dtype, "r", offset=HEADER.size, shape=(count,))


def read_made(folder: str | Path) -> dict[str, Any]:
    """What a prepared folder was made of: its manifest. UserError if it has none, or a damaged one."""
    folder = Path(folder)
    if not (folder / MANIFEST).is_file():
        raise UserError(
            f"{folder} has no {MANIFEST}: it is no prepared folder"
            " (one of an earlier version is made anew with --force)"
        )
    made = read_manifest(folder)
    with reading(folder / MANIFEST):
        return checked(made, MADE, MADE, more=True)


def check_prepared(folder: Path, name: str, made: dict[str, Any]) -> Path:
    """The path of a file of a prepared folder. OSError if it is missing, UserError if it is damaged."""
    try:
        return check_file(folder, name, made)
    except UserError as error:
        again = f"{made.get('command', 'its prepare.py')} --out={shlex.quote(str(folder))} --force"
        raise UserError(f"{error}; make the folder anew: {again}") from None


def open_tokens(path: str | Path) -> TokenFile:
    """Maps the token file at `path` into memory, if its SHA-256 is that of the manifest beside it.

    OSError if either is missing, UserError if one is damaged.
    """
    path = Path(path)
    made = read_made(path.parent)
    ids = map_ids(check_prepared(path.parent, path.name, made), made["vocab_size"])
    about = {key: made[key] for key in ("tokenizer", "fingerprint", "vocab_size", "source")}
    return TokenFile(ids, about | made["splits"][path.stem], path)
