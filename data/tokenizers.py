"""Tokenizers: text on one side, ids on the other."""

import hashlib
import json
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tiktoken
import tokenizers

from common.errors import UserError, reading
from common.files import replacing


class Tokenizer(Protocol):
    """Text to ids and back. No text is special: "<|endoftext|>" encodes as the characters it is made of."""

    name: str  # "gpt2", "bytes", "bpe<vocab_size>", "words" or a file's own: also of the prepared folder
    vocab_size: int  # ids are 0 .. vocab_size - 1
    # Whether lines are encoded one by one, and known to come back from their ids. If not, the text is encoded
    # in long stretches, and data.splits counts the lines that do not come back.
    by_line: bool

    @property
    def fingerprint(self) -> str: ...  # equal if and only if the tokenizers are
    @property
    def end_id(self) -> int | None: ...  # of the token that ends a text, which no text is encoded with
    def encode(self, text: str) -> list[int]: ...
    def encode_each(self, texts: list[str]) -> np.ndarray: ...
    def decode(self, ids: Iterable[int]) -> str: ...
    def save(self, folder: Path) -> None: ...
    def portable(self) -> tokenizers.Tokenizer: ...  # encodes and decodes the same in other programs


def ids_of(text: str, tokenizer: Tokenizer) -> list[int]:
    """The ids of a prompt, cut as a prepared text is: GPT-2 has tokens of two line ends, and no text that was
    encoded line by line has one."""
    lines = re.findall(LINE, text) if tokenizer.by_line else [text]
    return [i for line in lines for i in tokenizer.encode(line)]


def _fingerprint(vocab: dict[str, int], *merges: Any) -> str:
    return hashlib.sha256(json.dumps([sorted(vocab.items()), *merges]).encode()).hexdigest()


GPT2_VOCABULARY = "70a720356974bb99358aa0ce9f65de6c5cd2ee250442eb6279d7115029607df8"  # of its tokens' ids


class GPT2Tokenizer:
    """GPT-2's byte-level BPE (Radford et al. 2019), by tiktoken, which downloads its two files once."""

    name, vocab_size, by_line = "gpt2", 50257, True
    # A constant, not a hash. tiktoken checks the SHA-256 of its files, so there is only one gpt2, and a
    # machine with neither the files nor a network can tell which prepared data it made.
    fingerprint = "gpt2"

    @cached_property
    def _encoding(self) -> tiktoken.Encoding:
        try:
            return tiktoken.get_encoding("gpt2")
        except (OSError, ValueError) as error:
            raise FileNotFoundError(
                f"tiktoken cannot get its gpt2 files ({type(error).__name__}): connect to the network "
                "once, or set TIKTOKEN_CACHE_DIR to a folder with them, or use a trained tokenizer such as "
                "bpe2048"
            ) from None

    def encode(self, text: str) -> list[int]:
        """Ids of `text`."""
        return self._encoding.encode_ordinary(text)

    def save(self, folder: str | Path) -> None:
        """Writes nothing: everybody has GPT-2's files, or can have them."""

    @property
    def end_id(self) -> int:
        return self._encoding.eot_token

    @property
    def end(self) -> str:
        """The special token that ends a text, which `encode` never gives."""
        return self._encoding.decode([self._encoding.eot_token])

    def portable(self) -> tokenizers.Tokenizer:
        """The tokenizer as a model of the tokenizers library."""
        from transformers.convert_slow_tokenizer import TikTokenConverter  # seconds to import

        encoding = self._encoding

        class Converter(TikTokenConverter):
            @staticmethod
            def load_tiktoken_bpe(tiktoken_url: str) -> dict[bytes, int]:
                return encoding._mergeable_ranks

        return Converter(pattern=encoding._pat_str, extra_special_tokens=[self.end]).converted()

    def encode_each(self, texts: list[str]) -> np.ndarray:
        """Ids of each text by itself, one after the other, most of the time without Python's lock."""
        encoding, end = self._encoding, self.end
        joined = end.join(texts)
        if joined.count(end) >= len(texts):  # a text has these characters in it, too
            return np.fromiter(chain.from_iterable(map(self.encode, texts)), np.int64)
        # One call for all texts, and no Python number for each id. Nothing is merged across the special
        # token.
        ids = encoding.encode_to_numpy(joined, allowed_special={end}, disallowed_special=())
        return ids[ids != encoding.eot_token]

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids`; bytes that are not UTF-8 become U+FFFD."""
        return self._encoding.decode(list(ids), errors="replace")


class SavedTokenizer:
    """A tokenizer of the `tokenizers` library. It is saved as tokenizer.json beside what was made with it."""

    name: str
    by_line = True

    def __init__(self, model: tokenizers.Tokenizer) -> None:
        self.model = model
        self.vocab_size = model.get_vocab_size()

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the sorted vocabulary and, of a BPE, the merges in order: they decide every encoding."""
        model = json.loads(self.model.to_str())["model"]
        return _fingerprint(model["vocab"], *([model["merges"]] if "merges" in model else []))

    @property
    def end_id(self) -> int | None:
        return self.model.token_to_id("<|endoftext|>")

    def encode(self, text: str) -> list[int]:
        """Ids of `text`."""
        return self.encode_each([text]).tolist()

    def encode_each(self, texts: list[str]) -> np.ndarray:
        """Ids of each text by itself, one after the other, on all cores."""
        encodings = self.model.encode_batch_fast(texts, add_special_tokens=False)
        return np.fromiter(chain.from_iterable(encoding.ids for encoding in encodings), np.int64)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids`; bytes that are not UTF-8 become U+FFFD."""
        return self.model.decode(list(ids), skip_special_tokens=False)

    def portable(self) -> tokenizers.Tokenizer:
        """A copy of the model that decodes, too, as `decode` does: for other programs."""
        return tokenizers.Tokenizer.from_str(self.model.to_str())

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json into `folder`, all or nothing."""
        with replacing(Path(folder) / "tokenizer.json") as file:
            file.write(self.model.to_str().encode())


class BPETokenizer(SavedTokenizer):
    """Byte-level BPE with a vocabulary of any size. It starts from all 256 bytes, so every text
    round-trips."""

    def __init__(self, model: tokenizers.Tokenizer) -> None:
        super().__init__(model)
        self.name = f"bpe{self.vocab_size}"


def byte_level(vocab: dict[str, int]) -> tokenizers.Tokenizer:
    """A byte-level BPE that has no merges yet."""
    model = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, []))
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    return model


def byte_vocab() -> dict[str, int]:
    """The value of each byte under the character that stands for it in a byte-level BPE."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    # what can be printed stands for itself, the other bytes have the characters from 256 on, in order
    printable = {ord(c) for c in alphabet if ord(c) < 256}
    order = sorted(printable) + [b for b in range(256) if b not in printable]
    return dict(zip(alphabet, order))


class ByteTokenizer(SavedTokenizer):
    """One id a byte of UTF-8, which is its value: the byte-level BPE without merges."""

    name = "bytes"

    def __init__(self) -> None:
        super().__init__(byte_level(byte_vocab()))

    def encode_each(self, texts: list[str]) -> np.ndarray:
        """Ids of each text, one after the other."""
        return np.frombuffer("".join(texts).encode(), np.uint8).astype(np.int64)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids`; bytes that are not UTF-8 become U+FFFD."""
        return bytes(list(ids)).decode(errors="replace")


class FileTokenizer(SavedTokenizer):
    """Any tokenizer.json, as it encodes running text: it cuts nothing off, adds and draws nothing.

    Its name is made of its content: the same on every machine, another for another tokenizer. Whether a text
    comes back from its ids depends on the file: normalisers change it, unknown characters may be dropped.
    """

    by_line = False  # many have tokens with several line ends, or put a space before whatever they are given

    def __init__(self, content: dict[str, Any]) -> None:
        self.content = content
        super().__init__(tokenizers.Tokenizer.from_str(json.dumps(content)))
        self.model.encode_special_tokens = True  # as the characters they are made of
        self.name = f"{type(self.model.model).__name__.lower()}{self.vocab_size}-{self.fingerprint[:8]}"

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all that the file says."""
        return hashlib.sha256(json.dumps(self.content, sort_keys=True).encode()).hexdigest()

    def encode_each(self, texts: list[str]) -> np.ndarray:
        """Ids of each text by itself, one after the other. ValueError if the tokenizer has none for it."""
        with reading(f"text for the tokenizer {self.name}"):  # tokenizers raises bare Exception
            return super().encode_each(texts)

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json into `folder`, all or nothing: as it was read, for other versions of the
        library write it otherwise."""
        with replacing(Path(folder) / "tokenizer.json") as file:
            file.write(json.dumps(self.content).encode())


class WordTokenizer(SavedTokenizer):
    """One token a word of a closed vocabulary, for corpora made of words; other words are a ValueError.

    "\\n" is a word. Spaces stand between words, never in them. A text round-trips if its words are a single
    space apart, with no space beside "\\n".
    """

    name = "words"
    _word = re.compile(r"\n|[^ \n]+")

    @classmethod
    def of(cls, words: list[str]) -> "WordTokenizer":
        """The tokenizer that numbers `words`, all different and without spaces, 0, 1, ..."""
        vocab = {word: i for i, word in enumerate(words)}
        model = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab))
        model.pre_tokenizer = tokenizers.pre_tokenizers.Split(
            tokenizers.Regex(cls._word.pattern), "removed", invert=True
        )
        return cls(model)

    @cached_property
    def words(self) -> list[str]:
        """Word of each id (V,)."""
        vocab = self.model.get_vocab()
        return sorted(vocab, key=vocab.__getitem__)

    def encode_each(self, texts: list[str]) -> np.ndarray:
        """Ids of each text by itself, one after the other, on all cores.

        ValueError for a word that the vocabulary lacks.
        """
        try:
            return super().encode_each(texts)
        except Exception:  # tokenizers raises bare Exception, and does not say which word it was
            known = set(self.words)
            word = next(word for text in texts for word in self._word.findall(text) if word not in known)
            some = ", ".join(self.words[:3])
            raise UserError(
                f"the word {word!r} is not among the {self.vocab_size} of this vocabulary: "
                f"use its words, such as {some}"
            ) from None

    def portable(self) -> tokenizers.Tokenizer:
        model = super().portable()
        decoders = tokenizers.decoders
        spaced = decoders.WordPiece(prefix="\n\n", cleanup=False)  # no word begins with that
        line_ends = decoders.Replace(tokenizers.Regex(" ?\n ?"), "\n")
        model.decoder = decoders.Sequence([spaced, decoders.Fuse(), line_ends])
        return model

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids`: a space between two words of a line."""
        return re.sub(" ?\n ?", "\n", " ".join(self.words[i] for i in ids))


def read_tokenizer(path: Path) -> SavedTokenizer:
    """The tokenizer of a tokenizer.json, ours or any other. UserError if it cannot be used."""
    with reading(path):  # tokenizers raises bare Exception
        content = for_running_text(json.loads(path.read_bytes()))
        return _ours(content) or FileTokenizer(content)


def exported_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of the tokenizer.json beside weights that transformers wrote: GPT-2's, or one of ours
    whose export has a decoder and names some of its tokens as special, or any other."""
    tokenizer = read_tokenizer(path)
    if _fingerprint(tokenizer.model.get_vocab()) == GPT2_VOCABULARY:
        return GPT2Tokenizer()
    if isinstance(tokenizer, FileTokenizer):
        content = tokenizer.content
        if all(token["content"] in content["model"]["vocab"] for token in content["added_tokens"]):
            plain = content | {"added_tokens": []}
            return _ours(plain) or _ours(plain | {"decoder": None}) or tokenizer
    return tokenizer


def _ours(content: dict[str, Any]) -> SavedTokenizer | None:
    """A tokenizer.json as one of our own kinds; None if it is of another."""
    model = tokenizers.Tokenizer.from_str(json.dumps(content))
    ids = sorted(model.get_vocab().values())
    if ids != list(range(len(ids))):  # before anything that takes a time and a memory of the largest id
        raise UserError(f"its {len(ids)} tokens are not numbered 0 to {len(ids) - 1}")
    if _same_rules(model, WordTokenizer.of([]).model):
        return WordTokenizer(model)
    if _same_rules(model, byte_level({})) and model.get_vocab().keys() >= byte_vocab().keys():
        return ByteTokenizer() if model.get_vocab() == byte_vocab() else BPETokenizer(model)
    return None


def for_running_text(content: dict[str, Any]) -> dict[str, Any]:
    """A tokenizer.json without what cuts its text off, adds to it or draws. The rest tells whose it is, so
    that a tokenizer is the same one after it was saved."""
    rules = {k: v for k, v in content["model"].items() if k != "dropout"}
    return {**content, "model": rules, **dict.fromkeys(("truncation", "padding", "post_processor"))}


def _same_rules(a: tokenizers.Tokenizer, b: tokenizers.Tokenizer) -> bool:
    """Whether two tokenizers differ in nothing but their vocabularies and merges."""
    contents = [json.loads(model.to_str()) for model in (a, b)]
    for content in contents:
        content["model"] |= {"vocab": None, "merges": None}
    return contents[0] == contents[1]


def given_tokenizer(name: str) -> SavedTokenizer | None:
    """The tokenizer "bytes", or that of the file `name`; None for a name of another kind."""
    if name == ByteTokenizer.name:
        return ByteTokenizer()
    return read_tokenizer(Path(name).expanduser()) if name.endswith(".json") else None


def tokenizer_name(name: str) -> str:
    """What the tokenizer is called that `name` asks for: itself, but for a file, whose content names it."""
    given = given_tokenizer(name)
    return given.name if given else name


LINE = r"[^\n]*\n|[^\n]+"
LARGEST_BPE = 2**20
LONGEST_WORD = 1000  # characters, in the training of a BPE


def _runs(*kinds: str) -> re.Pattern[str]:
    """Matches LONGEST_WORD characters or more, all of one of these kinds."""
    return re.compile("|".join(f"(?<!{c}){c}{{{LONGEST_WORD},}}" for c in kinds))


_UNBROKEN = _runs(r"\S", r"\s")  # what may hold too long a word
_LONG_WORD = _runs(r"[^\W_]", r"(?:[^\w\s]|_)", r"\s")  # GPT-2's: letters and numbers, signs, or spaces


def bpe_size(name: str) -> int | None:
    """The vocabulary size that a tokenizer's name asks for: "bpe2048" -> 2048.

    None for "gpt2", "bytes", "words" and the path of a tokenizer.json, which has to be there; ValueError for
    any other name.
    """
    if name in ("gpt2", ByteTokenizer.name, WordTokenizer.name):
        return None
    if name.endswith(".json"):
        return None
    match = re.fullmatch(r"bpe([1-9]\d{0,12})", name)
    # 256 bytes and a merge; the library allocates all of them at once, and ends the process if it cannot
    if match is None or not 257 <= int(match[1]) <= LARGEST_BPE:
        raise UserError(
            f"tokenizer = {name!r}: use gpt2, bytes, words, a tokenizer.json, or bpe257 to bpe{LARGEST_BPE}"
        )
    return int(match[1])


def short_words(lines: Iterable[str]) -> Iterator[str]:
    """The lines, those that have words of more than LONGEST_WORD characters in pieces without such words."""
    for line in lines:
        at = 0
        for word in _LONG_WORD.finditer(line) if _UNBROKEN.search(line) else ():  # several times as fast
            for end in range(word.start() + LONGEST_WORD, word.end(), LONGEST_WORD):
                yield line[at:end]
                at = end
        yield line[at:]


def train_bpe(lines: Iterable[str], vocab_size: int) -> BPETokenizer:
    """Train a byte-level BPE of exactly `vocab_size` ids: GPT-2's pre-tokenizer, no normaliser, no special
    tokens.

    The time grows with the square of a word's length, so a longer one than LONGEST_WORD counts as several.
    Memory grows with the number of different words, not with the length of the text. UserError if the
    text has too few different pairs to reach `vocab_size`, which is one that `bpe_size` gives.
    """
    model = byte_level({})
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        show_progress=bool(sys.stderr and sys.stderr.isatty()),
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
    )
    model.train_from_iterator(short_words(lines), trainer)
    tokenizer = BPETokenizer(model)
    if tokenizer.vocab_size != vocab_size:
        raise UserError(
            f"the text is too small for bpe{vocab_size}: it yields {tokenizer.vocab_size} ids, "
            f"so use {tokenizer.name} or more text"
        )
    return tokenizer


def added(ids: list[int], tokenizer: Tokenizer) -> list[str]:
    """What each token adds to the text. A character of several tokens is added by its last."""
    out, shown = [], 0
    for end in range(1, len(ids) + 1):
        text = tokenizer.decode(ids[:end])
        if end < len(ids):
            text = text.rstrip("\ufffd")
        out.append(text[shown:])
        shown = max(shown, len(text))  # some tokenizers unread a character until the next one is whole
    return out
