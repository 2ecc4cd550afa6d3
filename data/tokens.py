"""Token files: the ids of a text, mapped into memory, and a JSON beside them that says what they are.

The file is a 32-byte little-endian header (magic, version, bytes per id, count, 8 reserved bytes), then ids.
"""

import hashlib
import importlib
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from common.config import Natural, Positive, Share
from common.errors import UserError, reading
from common.files import read_json, replacing, write_json
from common.places import modules

MAGIC, VERSION = b"NHTOKENS", 1
HEADER = struct.Struct("<8sIIQ8x")  # magic, version, bytes per id, number of ids
# ids of a file that are looked at when it is opened, a tenth of a second; the rest when they are used
SCANNED = 2**27
PREPARE = "run the corpus' prepare.py, for instance: python data/wikitext103/prepare.py"

# what is read of a token file's JSON, and of which type it is
NEEDED = {"tokens": Positive, "vocab_size": Positive}
INFO = {
    **dict.fromkeys(("words", "lines", "changed_lines", "length", "given", "absent"), Natural),
    # sha256: of the text; ids_sha256: of the token file behind its header
    **dict.fromkeys(("tokenizer", "fingerprint", "sha256", "ids_sha256", "source"), str),
    "bytes": Positive,
    "dropped": Share,
}


class Truth(Protocol):
    """The exact distributions of a split: made and read (`read_truth`) by KIND/truth.py of a lab."""

    info: dict[str, Any]  # entropy_rate and entropy (of this split), nats a token, and more about the corpus
    end: int  # the token that ends a document

    def probs(self, positions: np.ndarray) -> np.ndarray:
        """p(token at position | all tokens before it) (N, V), float64, for positions (N,) of the split."""
        ...

    def after(self, ids: np.ndarray) -> np.ndarray | None:
        """p(next token | ids) (V,) of a text (T,) that begins a document; None where nobody can tell."""
        ...

    def judge(self, prompts: np.ndarray, new: np.ndarray) -> np.ma.MaskedArray:
        """Whether the language allows each of the sampled tokens `new` (n, L) after `prompts` (n, P): (n, L)
        bool, masked where nobody can tell."""
        ...


class TokenFile(NamedTuple):
    ids: np.memmap  # (tokens,) uint16 or uint32, read-only
    info: dict[str, Any]  # what the JSON says, see INFO
    path: Path
    truth: Truth | None = None  # None where nobody knows it, or nobody asked

    @property
    def words(self) -> int | None:
        """Words and line ends, what perplexity a word is counted by; None for a corpus that has none."""
        return self.info["words"] + self.info["lines"] if {"words", "lines"} <= self.info.keys() else None

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


def write_tokens(
    path: str | Path,
    arrays: Iterable[np.ndarray],
    vocab_size: int,
    info: dict[str, Any] | Callable[[], dict[str, Any]],
) -> TokenFile:
    """Write the ids of `arrays`, one after the other, to `path`, and `info` to the JSON beside it.

    arrays      integer arrays of any length, held in memory one at a time
    vocab_size  every id must lie below it; up to 65,536 an id takes 2 bytes, else 4
    info        what open_tokens returns, or a function giving it, called when `arrays` is used up;
                "tokens" and "vocab_size" are filled in here

    ValueError for ids out of range and for no ids at all. An OSError (a full disk) leaves nothing behind.
    """
    path = Path(path)
    dtype, count, sha256 = id_dtype(vocab_size), 0, hashlib.sha256()
    info_path = path.with_suffix(".json")
    with replacing(path) as file:
        file.write(bytes(HEADER.size))  # no magic yet: what a crash leaves is not a token file
        for ids in arrays:
            if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
                raise UserError(f"{path}: ids {ids.min()} to {ids.max()} do not fit vocab_size {vocab_size}")
            raw = ids.astype(dtype).tobytes()
            file.write(raw)
            sha256.update(raw)
            count += ids.size
        if not count:
            raise UserError(f"{path}: no tokens to write: is the text empty?")
        file.seek(0)
        file.write(HEADER.pack(MAGIC, VERSION, dtype.itemsize, count))
        content = {**(info() if callable(info) else info), "vocab_size": vocab_size, "tokens": count}
        content["ids_sha256"] = sha256.hexdigest()
        info_path.unlink(missing_ok=True)  # the new ids never stand beside the old JSON
    write_json(info_path, content)
    return open_tokens(path)


def open_tokens(path: str | Path, compare: bool = False) -> TokenFile:
    """Map the token file at `path` into memory and read the JSON beside it.

    compare  whether the ids are compared with the SHA-256 that the JSON has of them: 0.3 GB a second or more

    OSError if either is missing, UserError if they are damaged or do not belong together.
    """
    path = Path(path)
    info_path = path.with_suffix(".json")
    info = read_json(info_path, NEEDED, INFO)
    with reading(path), open(path, "rb") as file:
        dtype, count = id_dtype(info["vocab_size"]), info["tokens"]
        header, size = HEADER.pack(MAGIC, VERSION, dtype.itemsize, count), path.stat().st_size
        fits = size == len(header) + dtype.itemsize * count and info.get("given", 0) <= info.get("length", 0)
        if not fits or file.read(len(header)) != header:
            raise UserError(f"it is no token file, or not the one of {info_path}")
        ids = np.memmap(path, dtype, "r", offset=HEADER.size, shape=(count,))
    tokens = TokenFile(ids, {"complete": None} | info, path)
    check_ids(tokens, ids[:SCANNED])
    if compare and "ids_sha256" in info and hashlib.sha256(ids.data).hexdigest() != info["ids_sha256"]:
        raise UserError(f"{path} has changed since it was written: its SHA-256 is another")
    return tokens


def check_ids(tokens: TokenFile, ids: np.ndarray) -> np.ndarray:
    """`ids`, read from `tokens`. ValueError if one is not in the vocabulary: the file is damaged."""
    highest = int(ids.max(initial=0))
    if highest >= tokens.info["vocab_size"]:
        raise UserError(f"{tokens.path} is damaged: it holds the id {highest}, beyond its vocabulary")
    return ids


# -----------------------------------------------------------------------------
# What can be scored on a split: its tokens, and the truth where it is known


def open_held_out(path: str | Path) -> TokenFile:
    """The split whose token file is `path`, with its truth. Errors: see `open_tokens` and `open_truth`."""
    tokens = open_tokens(path, compare=True)
    return tokens._replace(truth=open_truth(tokens))


def truth_path(tokens: Path) -> Path:
    """Where the truth of the token file `tokens` lies: validation.bin -> validation.truth.npz."""
    return tokens.with_suffix(".truth.npz")


def open_truth(tokens: TokenFile) -> Truth | None:
    """The truth of a token file; None where there is none. UserError when it is damaged, or belongs to other
    tokens."""
    path = truth_path(tokens.path)
    if not path.is_file():
        return None
    with reading(path):
        with np.load(path, allow_pickle=False) as file:
            kind = str(file["kind"])
        return importlib.import_module(modules("truth")[kind]).read_truth(tokens, path)
