"""Token files and tokenizers: text on one side, ids on the other, and a record of how they belong together.

A prepared folder (data/CORPUS/TOKENIZER) holds train.bin, validation.bin and test.bin, each with its JSON beside it,
meta.json (written last: what the folder is) and, for a trained BPE or a word list, tokenizer.json.

A token file is a 32-byte little-endian header (magic, version, bytes per id, count, 8 reserved bytes), then the ids.
"""

import difflib
import hashlib
import importlib
import json
import re
import struct
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import tiktoken
import tokenizers

from runtime.errors import UserError
from runtime.files import read_json, replacing, write_json

MAGIC, VERSION = b"NHTOKENS", 1
HEADER = struct.Struct("<8sIIQ8x")  # magic, version, bytes per id, number of ids
DATA = Path(__file__).resolve().parent
ROOT = DATA.parent  # of the project
SPLITS = ("train", "validation", "test")
# ids of a file that are looked at when it is opened, a tenth of a second; the rest when they are used
SCANNED = 2**27
PREPARE = "run the corpus' prepare.py, for instance: python data/demo/prepare.py"


# ---- token files ----------------------------------------------------------------------------------------------------

# types of what is read of a token file's JSON
INFO = {
    "tokens": int,
    "vocab_size": int,
    "words": int,
    "lines": int,
    "bytes": int,
    "tokenizer": str,
    "fingerprint": str,
    "sha256": str,
    "source": str,
}


class TokenFile(NamedTuple):
    ids: np.memmap  # (tokens,) uint16 or uint32, read-only
    info: dict[
        str, Any
    ]  # tokenizer, fingerprint, vocab_size, tokens, words, lines, bytes, sha256, source, complete
    path: Path


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

    Raises ValueError for ids out of range and for no ids at all; OSError (a full disk) goes up after cleaning.
    """
    path, dtype, count = Path(path), id_dtype(vocab_size), 0
    described = path.with_suffix(".json")
    with replacing(path) as file:
        file.write(bytes(HEADER.size))  # no magic yet: what a crash leaves is not a token file
        for ids in arrays:
            if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
                raise UserError(
                    f"{path}: ids from {ids.min()} to {ids.max()} do not fit vocab_size {vocab_size}: "
                    "was this text encoded with another tokenizer?"
                )
            file.write(ids.astype(dtype).tobytes())
            count += ids.size
        if not count:
            raise UserError(f"{path}: no tokens to write: is the text empty?")
        file.seek(0)
        file.write(HEADER.pack(MAGIC, VERSION, dtype.itemsize, count))
        content = {**(info() if callable(info) else info), "vocab_size": vocab_size, "tokens": count}
        described.unlink(missing_ok=True)  # an older description must not meet the new ids
    write_json(described, content)
    return open_tokens(path)


def open_tokens(path: str | Path) -> TokenFile:
    """Map the token file at `path` into memory and read the JSON beside it.

    Raises FileNotFoundError when either is missing, ValueError when they are damaged or do not belong together.
    """
    path, again = Path(path), "prepare it again, with --force"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: {PREPARE} (or its source had no such split)")
    with open(path, "rb") as file:
        header = file.read(HEADER.size)
    if len(header) < HEADER.size or not header.startswith(MAGIC):
        raise UserError(
            f"{path} is not a token file (it starts with {header[:8]!r}, not {MAGIC!r}): {PREPARE}"
        )
    _, version, width, count = HEADER.unpack(header)
    if version != VERSION:
        raise UserError(f"{path} has version {version}, this code reads version {VERSION}: {again}")
    if width not in (2, 4) or not count:
        raise UserError(f"{path} has a damaged header ({width} bytes per id, {count} ids): {again}")
    expected, found = HEADER.size + width * count, path.stat().st_size
    if found != expected:
        raise UserError(f"{path} should have {expected} bytes and has {found}: {again}")
    info = _read_info(path.with_suffix(".json"), width, count, again)
    tokens = TokenFile(np.memmap(path, f"<u{width}", "r", offset=HEADER.size, shape=(count,)), info, path)
    check_ids(tokens, tokens.ids[:SCANNED])
    return tokens


def check_ids(tokens: TokenFile, ids: np.ndarray) -> np.ndarray:
    """`ids`, read from `tokens`. ValueError if one is not in the vocabulary: the file is damaged."""
    highest = int(ids.max(initial=0))
    if highest >= tokens.info["vocab_size"]:
        raise UserError(
            f"{tokens.path} is damaged: it holds the id {highest}, and its vocabulary has "
            f"{tokens.info['vocab_size']}: prepare it again, with --force"
        )
    return ids


def _read_info(path: Path, width: int, count: int, again: str) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing, so its token file was not finished: {PREPARE}")
    try:
        info = read_json(path)
        tokens, vocab_size = info["tokens"], info["vocab_size"]
        odd = [key for key, kind in INFO.items() if key in info and type(info[key]) is not kind]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} does not describe a token file ({error!r}): {again}") from None
    if odd or vocab_size < 1:
        raise UserError(
            f"{path} does not describe a token file ({odd[0] if odd else 'vocab_size'} = "
            f"{info[odd[0]] if odd else vocab_size!r}): {again}"
        )
    if tokens != count:
        raise UserError(f"{path} says {tokens} tokens, its token file has {count}: {again}")
    if id_dtype(vocab_size).itemsize != width:
        raise UserError(
            f"{path} says vocab_size {vocab_size}, its token file has {width} bytes per id: {again}"
        )
    return info


# ---- tokenizers -----------------------------------------------------------------------------------------------------


class Tokenizer(Protocol):
    """Text to ids and back. No text is special: "<|endoftext|>" encodes as the characters it is made of."""

    name: str  # "gpt2", "bpe<vocab_size>" or "words": also the name of the prepared folder
    vocab_size: int  # ids are 0 .. vocab_size - 1
    fingerprint: str  # equal if and only if the tokenizers are

    def encode(self, text: str) -> list[int]: ...
    def encode_each(self, texts: list[str]) -> np.ndarray: ...
    def decode(self, ids: Iterable[int]) -> str: ...


class GPT2Tokenizer:
    """GPT-2's byte-level BPE (Radford et al. 2019), by tiktoken, which downloads its two files once."""

    name, vocab_size = "gpt2", 50257
    # A constant, not a hash: tiktoken checks the SHA-256 of the files itself, so there is only one gpt2, and
    # prepared data can be recognised on a machine that has neither the files nor a network.
    fingerprint = "gpt2"

    @cached_property
    def _encoding(self) -> tiktoken.Encoding:
        try:
            return tiktoken.get_encoding("gpt2")
        except (OSError, ValueError) as error:
            raise FileNotFoundError(
                f"tiktoken cannot get its gpt2 files ({type(error).__name__}): connect to the network once, or set "
                "TIKTOKEN_CACHE_DIR to a folder that has them, or use a trained tokenizer such as bpe2048"
            ) from None

    def encode(self, text: str) -> list[int]:
        """Ids of `text`."""
        return self._encoding.encode_ordinary(text)

    def encode_each(self, texts: list[str]) -> np.ndarray:
        """Ids of each text by itself, one after the other, most of the time without Python's lock."""
        encoding = self._encoding
        end = encoding.decode([encoding.eot_token])
        joined = end.join(texts)
        if joined.count(end) >= len(texts):  # a text has it, too, as characters
            return np.fromiter(chain.from_iterable(map(self.encode, texts)), np.int64)
        # One call instead of one for each text, and no Python number for each id: nothing is merged across a special token
        ids = encoding.encode_to_numpy(joined, allowed_special={end}, disallowed_special=())
        return ids[ids != encoding.eot_token]

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids`; bytes that are not UTF-8 become U+FFFD."""
        return self._encoding.decode(list(ids), errors="replace")


class SavedTokenizer:
    """A tokenizer of the `tokenizers` library, which goes along with what was made with it as tokenizer.json."""

    name: str

    def __init__(self, model: tokenizers.Tokenizer) -> None:
        self.model = model
        self.vocab_size = model.get_vocab_size()
        if sorted(model.get_vocab().values()) != list(range(self.vocab_size)):
            raise UserError(f"its {self.vocab_size} tokens are not numbered 0 to {self.vocab_size - 1}")

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the sorted vocabulary and of the merges (of a BPE) in order: together they decide every encoding."""
        model = json.loads(self.model.to_str())["model"]
        content = json.dumps(
            [sorted(model["vocab"].items()), *([model["merges"]] if "merges" in model else [])]
        )
        return hashlib.sha256(content.encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        """Ids of `text`."""
        return self.model.encode(text, add_special_tokens=False).ids

    def encode_each(self, texts: list[str]) -> np.ndarray:
        """Ids of each text by itself, one after the other, on all cores."""
        encodings = self.model.encode_batch_fast(texts, add_special_tokens=False)
        return np.fromiter(chain.from_iterable(encoding.ids for encoding in encodings), np.int64)

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json into `folder`, all or nothing."""
        with replacing(Path(folder) / "tokenizer.json") as file:
            file.write(self.model.to_str().encode())


class BPETokenizer(SavedTokenizer):
    """Byte-level BPE with a vocabulary of one's own size. It starts from all 256 bytes, so any text round-trips."""

    def __init__(self, model: tokenizers.Tokenizer) -> None:
        super().__init__(model)
        self.name = f"bpe{self.vocab_size}"

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids`; bytes that are not UTF-8 become U+FFFD."""
        return self.model.decode(list(ids), skip_special_tokens=False)


class WordTokenizer(SavedTokenizer):
    """One token a word of a closed vocabulary, for corpora made of words. "\\n" is a word; spaces stand between words, never in them.

    A text whose words are a single space apart, with none beside "\\n", round-trips. Other words are refused (ValueError).
    """

    name, _word = "words", re.compile(r"\n|[^ \n]+")

    @classmethod
    def of(cls, words: list[str]) -> "WordTokenizer":
        """The tokenizer that numbers `words` 0, 1, ... ValueError for a word twice, and for one that has a space or "\\n" in it."""
        for word in words:
            if not cls._word.fullmatch(word):
                raise UserError(f"{word!r} is not a word: it must have neither spaces nor line ends in it")
        vocab = {word: i for i, word in enumerate(words)}
        if len(vocab) < len(words):
            raise UserError(
                f"{max(words, key=words.count)!r} stands in the word list twice: give each word once"
            )
        model = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab))
        model.pre_tokenizer = tokenizers.pre_tokenizers.Split(
            tokenizers.Regex(cls._word.pattern), "removed", invert=True
        )
        return cls(model)

    @cached_property
    def words(self) -> list[str]:
        """Word of each id (V,)."""
        return [self.model.id_to_token(i) for i in range(self.vocab_size)]

    def encode(self, text: str) -> list[int]:
        """Ids of `text`. ValueError for a word that the vocabulary lacks."""
        return self.encode_each([text]).tolist()

    def encode_each(self, texts: list[str]) -> np.ndarray:
        """Ids of each text by itself, one after the other, on all cores. ValueError for a word that the vocabulary lacks."""
        try:
            return super().encode_each(texts)
        except Exception:  # tokenizers raises bare Exception, and does not say which word it was
            known = set(self.words)
            word = next(word for text in texts for word in self._word.findall(text) if word not in known)
            some = ", ".join(self.words[:3])
            raise UserError(
                f"the word {word!r} is not among the {self.vocab_size} of this vocabulary: use its words, such as {some}"
            ) from None

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids`: a space between two words of a line."""
        words = [self.words[i] for i in ids]
        joined = (("" if "\n" in (before, word) else " ") + word for before, word in zip(words, words[1:]))
        return "".join(chain(words[:1], joined))


LARGEST_BPE = 2**20


def bpe_size(name: str) -> int | None:
    """The vocabulary size that a tokenizer's name asks for: "bpe2048" -> 2048; None for "gpt2" and "words". Else ValueError."""
    if name in ("gpt2", WordTokenizer.name):
        return None
    match = re.fullmatch(r"bpe([1-9]\d{0,12})", name)
    if match is None:
        raise UserError(
            f"unknown tokenizer {name!r}: use gpt2, or bpe<vocabulary size>, for instance bpe2048 (words for the grammar corpus)"
        )
    return _checked_size(int(match[1]))


def _checked_size(vocab_size: int) -> int:
    if vocab_size < 257:
        raise UserError(
            f"vocabulary size {vocab_size} is too small: a byte-level BPE needs 257 or more, "
            "256 bytes and a merge"
        )
    # the tokenizers library makes room for all of them at once, and ends the process where there is none
    if vocab_size > LARGEST_BPE:
        raise UserError(f"vocabulary size {vocab_size} is too large: at most {LARGEST_BPE}, GPT-2 has 50257")
    return vocab_size


def train_bpe(lines: Iterable[str], vocab_size: int) -> BPETokenizer:
    """Train a byte-level BPE (GPT-2's pre-tokenizer, no normaliser, no special tokens) of exactly vocab_size ids.

    Memory grows with the number of different words, not with the text. Raises ValueError for a vocab_size below 257,
    and when the text has too few different pairs to reach it.
    """
    byte_level = tokenizers.pre_tokenizers.ByteLevel
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = byte_level(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=_checked_size(vocab_size),
        show_progress=False,
        initial_alphabet=sorted(byte_level.alphabet()),
    )
    model.train_from_iterator(lines, trainer)
    tokenizer = BPETokenizer(model)
    if tokenizer.vocab_size != vocab_size:
        raise UserError(
            f"the text is too small for bpe{vocab_size}: it yields {tokenizer.vocab_size} ids, "
            f"so use {tokenizer.name} or more text"
        )
    return tokenizer


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """The tokenizer of a prepared folder. FileNotFoundError when the folder names none, ValueError when damaged."""
    folder = Path(folder)
    trained = folder / "tokenizer.json"
    if trained.is_file():
        try:
            model = tokenizers.Tokenizer.from_str(trained.read_text(encoding="utf-8"))
            if not isinstance(model.model, (tokenizers.models.WordLevel, tokenizers.models.BPE)):
                raise UserError(f"it is a {type(model.model).__name__}, neither a BPE nor a word list")
            return (
                WordTokenizer(model)
                if isinstance(model.model, tokenizers.models.WordLevel)
                else BPETokenizer(model)
            )
        except Exception as error:  # tokenizers raises bare Exception
            raise UserError(
                f"{trained} is not a tokenizer ({error}): prepare it again, with --force"
            ) from None
    if read_meta(folder).get("tokenizer") == "gpt2":
        return GPT2Tokenizer()
    raise FileNotFoundError(f"{folder} has no tokenizer.json, and no meta.json that says gpt2: {PREPARE}")


# ---- prepared folders -----------------------------------------------------------------------------------------------


def kept_path(folder: Path) -> str:
    """`folder` as a checkpoint keeps it: relative to the project where it lies inside, so that both can move;
    else absolute."""
    folder = Path(folder).absolute()
    return str(folder.relative_to(ROOT)) if folder.is_relative_to(ROOT) else str(folder)


def found_path(kept: str, run: str | Path) -> Path:
    """The folder that `kept_path` wrote down in `run`. FileNotFoundError, saying the way out, if it is not
    there any more."""
    folder = ROOT / kept
    if not folder.is_dir():
        raise FileNotFoundError(
            f"the token files of {run} are not in {folder} any more: say where they are "
            f"with --data=FOLDER, or prepare them again "
            f"(data/{Path(kept).parent.name}/prepare.py)"
        )
    return folder


def read_meta(folder: Path) -> dict[str, Any]:
    """What meta.json in `folder` says; {} when it is missing or damaged, which means: prepare again."""
    try:
        meta = json.loads((folder / "meta.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return meta if isinstance(meta, dict) else {}


def is_prepared(folder: Path, tokenizer: str, source: str = "") -> bool:
    """Whether `folder` is whole: finished, of that tokenizer and (unless "") that source, and every split opens."""
    meta = read_meta(folder)
    if not meta.get("splits") or meta.get("tokenizer") != tokenizer:
        return False
    if source and meta.get("source") not in (source, str(Path(source).expanduser().resolve())):
        return False
    try:
        fingerprint = load_tokenizer(folder).fingerprint
        files = [open_tokens(folder / f"{split}.bin") for split in meta["splits"]]
        return all(file.info.get("fingerprint") == fingerprint for file in files)
    except (OSError, ValueError):
        return False


def prepared(dataset: str, tokenizer: str, source: str = "", root: str | Path = DATA) -> Path:
    """The folder root/dataset/tokenizer, prepared first unless it is whole.

    dataset    a folder of data/ that has a prepare.py: "wikitext103", "demo", "grammar"
    tokenizer  "gpt2" or "bpe<vocabulary size>"; "words" for the grammar
    source     where the text comes from; "" takes what is prepared already, else the corpus' default

    Raises ValueError for unknown names, when the folder was prepared from another source, and for a damaged token file.
    """
    known = sorted(path.parent.name for path in DATA.glob("*/prepare.py"))
    if dataset not in known:
        near = difflib.get_close_matches(dataset, known, 1)
        raise UserError(
            f"unknown dataset {dataset!r}"
            + (f", did you mean {near[0]!r}?" if near else "")
            + f" (known: {', '.join(known)})"
        )
    bpe_size(tokenizer)
    folder = Path(root) / dataset / tokenizer
    for split in read_meta(folder).get("splits", ()):
        with suppress(
            FileNotFoundError
        ):  # what is missing is made; a file that is damaged is said, not silently made again
            open_tokens(folder / f"{split}.bin")
    if not is_prepared(folder, tokenizer, source):
        importlib.import_module(f"data.{dataset}.prepare").prepare(folder, tokenizer, source)
    return folder


def unusual(dataset: str, source: str) -> str:
    """Which of a generated corpus' settings, in the `source` of its record, are not the standard ones; "" if none is."""
    return getattr(importlib.import_module(f"data.{dataset}.prepare"), "unusual", lambda _: "")(source)
