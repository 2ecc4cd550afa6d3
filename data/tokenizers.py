"""Tokenizers: text on one side, ids on the other. GPT-2's, bytes, words, and any tokenizer.json."""

import hashlib
import json
import re
from collections.abc import Iterable
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import tiktoken
import tokenizers

from common.errors import UserError, reading
from common.files import replacing

LINE = r"[^\n]*\n|[^\n]+"
LARGEST_BPE = 2**20


class Tokenizer:
    """Text to ids and back, by a model of the `tokenizers` library. No text is special: "<|endoftext|>"
    encodes as the characters it is made of. It is saved as tokenizer.json beside what was made with it."""

    name: str  # "gpt2", "bytes", "bpe<vocab_size>", "words" or a file's own: also of the prepared folder
    vocab_size: int  # ids are 0 .. vocab_size - 1
    # Whether lines are encoded one by one, and known to come back from their ids. If not, the text is encoded
    # in long stretches, and data/prepare counts the lines that do not come back.
    by_line = True

    def __init__(self, model: tokenizers.Tokenizer, file: str = "") -> None:
        self.model, self.file = model, file or model.to_str()  # as it is saved
        self.vocab_size = model.get_vocab_size()

    @cached_property
    def fingerprint(self) -> str:
        """Equal if and only if the tokenizers are: SHA-256 of the sorted vocabulary and, of a BPE, the merges
        in order. They decide every encoding."""
        model = json.loads(self.file)["model"]
        return vocabulary_digest(model["vocab"], *([model["merges"]] if "merges" in model else []))

    @property
    def end_id(self) -> int | None:
        """Id of the token that ends a text, which no text is encoded with."""
        return self.model.token_to_id("<|endoftext|>")

    def encode(self, text: str) -> list[int]:
        """Ids of `text`."""
        return self.encode_each([text]).tolist()

    def encode_each(self, texts: list[str]) -> np.ndarray:
        """Ids of each text by itself, one after the other, on all cores. UserError if there are none."""
        with reading(f"text for the tokenizer {self.name}"):  # tokenizers raises bare Exception
            encodings = self.model.encode_batch_fast(texts, add_special_tokens=False)
        return np.fromiter(chain.from_iterable(encoding.ids for encoding in encodings), np.int64)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids`; bytes that are not UTF-8 become U+FFFD."""
        return self.model.decode(list(ids), skip_special_tokens=False)

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json into `folder`, all or nothing."""
        with replacing(Path(folder) / "tokenizer.json") as file:
            file.write(self.file.encode())


def vocabulary_digest(vocab: dict[str, int], *merges: Any) -> str:
    return hashlib.sha256(json.dumps([sorted(vocab.items()), *merges]).encode()).hexdigest()


class GPT2Tokenizer(Tokenizer):
    """GPT-2's byte-level BPE (Radford et al. 2019), by tiktoken, which downloads its two files once."""

    name, vocab_size = "gpt2", 50257
    # A constant, not a hash. tiktoken checks the SHA-256 of its files, so there is only one gpt2, and a
    # machine with neither the files nor a network can tell which prepared data it made.
    fingerprint = "gpt2"

    def __init__(self) -> None:
        pass

    @cached_property
    def encoding(self) -> tiktoken.Encoding:
        try:
            return tiktoken.get_encoding("gpt2")
        except (OSError, ValueError) as error:
            raise FileNotFoundError(
                f"tiktoken cannot get its gpt2 files ({type(error).__name__}): connect to the network "
                "once, or set TIKTOKEN_CACHE_DIR to a folder with them"
            ) from None

    @property
    def end_id(self) -> int:
        return self.encoding.eot_token

    def encode(self, text: str) -> list[int]:
        return self.encoding.encode_ordinary(text)

    def encode_each(self, texts: list[str]) -> np.ndarray:
        """Ids of each text by itself, one after the other, most of the time without Python's lock."""
        encoding, end = self.encoding, self.encoding.decode([self.end_id])
        joined = end.join(texts)
        if joined.count(end) >= len(texts):  # a text has these characters in it, too
            return np.fromiter(chain.from_iterable(map(self.encode, texts)), np.int64)
        # One call for all texts, and no Python number for each id. Nothing is merged across the special
        # token.
        ids = encoding.encode_to_numpy(joined, allowed_special={end}, disallowed_special=())
        return ids[ids != encoding.eot_token]

    def decode(self, ids: Iterable[int]) -> str:
        return self.encoding.decode(list(ids), errors="replace")

    def save(self, folder: str | Path) -> None:
        """Writes nothing: everybody has GPT-2's files, or can have them."""


# -----------------------------------------------------------------------------
# Byte-level


class BPETokenizer(Tokenizer):
    """Byte-level BPE with a vocabulary of any size. It starts from all 256 bytes, so every text
    round-trips."""

    def __init__(self, model: tokenizers.Tokenizer) -> None:
        super().__init__(model)
        self.name = f"bpe{self.vocab_size}"


class ByteTokenizer(Tokenizer):
    """One id a byte of UTF-8, which is its value: the byte-level BPE without merges."""

    name = "bytes"

    def __init__(self) -> None:
        super().__init__(byte_level(byte_vocab()))

    def encode_each(self, texts: list[str]) -> np.ndarray:
        return np.frombuffer("".join(texts).encode(), np.uint8).astype(np.int64)


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


# -----------------------------------------------------------------------------
# Words, and the files of other programs


class WordTokenizer(Tokenizer):
    """One token a word of a closed vocabulary, for corpora made of words; other words are a UserError.

    "\\n" is a word. Spaces stand between words, never in them. A text round-trips if its words are a single
    space apart, with no space beside "\\n".
    """

    name = "words"
    _word = re.compile(r"\n|[^ \n]+")

    def __init__(self, model: tokenizers.Tokenizer) -> None:
        super().__init__(model)
        self._ids = model.get_vocab()
        self.words = sorted(self._ids, key=self._ids.__getitem__)  # word of each id (V,)

    @classmethod
    def of(cls, words: list[str]) -> "WordTokenizer":
        """The tokenizer that numbers `words`, all different and without spaces, 0, 1, ..."""
        vocab = {word: i for i, word in enumerate(words)}
        model = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab))
        model.pre_tokenizer = tokenizers.pre_tokenizers.Split(
            tokenizers.Regex(cls._word.pattern), "removed", invert=True
        )
        return cls(model)

    def encode_each(self, texts: list[str]) -> np.ndarray:
        try:
            return np.array([self._ids[w] for text in texts for w in self._word.findall(text)], np.int64)
        except KeyError as error:
            some = ", ".join([word for word in self.words if word.isalpha()][:3])
            raise UserError(f"the word {error} is none of these {self.vocab_size}: {some} ...") from None

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids`: a space between two words of a line."""
        return re.sub(" ?\n ?", "\n", " ".join(self.words[i] for i in ids))


class FileTokenizer(Tokenizer):
    """Any tokenizer.json, as it encodes running text: it cuts nothing off, adds and draws nothing.

    Its name is made of its content: the same on every machine, another for another tokenizer. Whether a text
    comes back from its ids depends on the file: normalisers change it, unknown characters may be dropped.
    """

    by_line = False  # many have tokens with several line ends, or put a space before whatever they are given

    def __init__(self, content: dict[str, Any]) -> None:
        # saved as it was read: other versions of the library write it otherwise
        self.content, file = content, json.dumps(content)
        super().__init__(tokenizers.Tokenizer.from_str(file), file)
        self.model.encode_special_tokens = True  # as the characters they are made of
        self.name = f"{type(self.model.model).__name__.lower()}{self.vocab_size}-{self.fingerprint[:8]}"

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all that the file says."""
        return hashlib.sha256(json.dumps(self.content, sort_keys=True).encode()).hexdigest()


def read_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a tokenizer.json, ours or any other. UserError if it cannot be used."""
    with reading(path):  # tokenizers raises bare Exception
        content = json.loads(path.read_bytes())
        # What cuts a text off, adds to it or draws is left out; the rest tells whose it is, so that a
        # tokenizer is the same one after it was saved
        content["model"].pop("dropout", None)
        content |= dict.fromkeys(("truncation", "padding", "post_processor"))
        return own_kind(content) or FileTokenizer(content)


def own_kind(content: dict[str, Any]) -> Tokenizer | None:
    """A tokenizer.json as one of our own kinds; None if it is of another."""
    model = tokenizers.Tokenizer.from_str(json.dumps(content))
    vocab = model.get_vocab()
    if sorted(vocab.values()) != list(range(len(vocab))):  # before anything of the size of the largest id
        raise UserError(f"its {len(vocab)} tokens are not numbered 0 to {len(vocab) - 1}")
    if _rules(model) == _rules(WordTokenizer.of([]).model):
        return WordTokenizer(model)
    if _rules(model) == _rules(byte_level({})) and vocab.keys() >= byte_vocab().keys():
        return ByteTokenizer() if vocab == byte_vocab() else BPETokenizer(model)
    return None


def _rules(model: tokenizers.Tokenizer) -> dict[str, Any]:
    """All of a tokenizer but its vocabulary and merges."""
    content = json.loads(model.to_str())
    content["model"] |= {"vocab": None, "merges": None}
    return content


# -----------------------------------------------------------------------------
# By name


def given_tokenizer(name: str) -> Tokenizer | None:
    """The tokenizer "gpt2", "bytes" or that of the file `name`; None for "words" and "bpe<size>", which are
    made of a text. UserError for any other name."""
    if name in ("gpt2", "bytes"):
        return GPT2Tokenizer() if name == "gpt2" else ByteTokenizer()
    if name.endswith(".json"):
        return read_tokenizer(Path(name).expanduser())
    size = re.fullmatch(r"bpe([1-9]\d{2,6})", name)
    # 256 bytes and a merge; the library allocates all of them at once, and ends the process if it cannot
    if name != "words" and not (size and 257 <= int(size[1]) <= LARGEST_BPE):
        raise UserError(
            f"tokenizer = {name!r}: use gpt2, bytes, words, a tokenizer.json, or bpe257 to bpe{LARGEST_BPE}"
        )
    return None


def tokenizer_name(name: str) -> str:
    """What the tokenizer is called that `name` asks for: itself, but for a file, whose content names it."""
    return read_tokenizer(Path(name).expanduser()).name if name.endswith(".json") else name


# -----------------------------------------------------------------------------
# Prompts and samples


def ids_of(text: str, tokenizer: Tokenizer) -> list[int]:
    """The ids of a prompt, cut as a prepared text is: GPT-2 has tokens of two line ends, and no text that was
    encoded line by line has one."""
    lines = re.findall(LINE, text) if tokenizer.by_line else [text]
    return [i for line in lines for i in tokenizer.encode(line)]


def text_of_each(ids: list[int], tokenizer: Tokenizer) -> list[str]:
    """What each token adds to the text. A character of several tokens is added by its last."""
    out, shown = [], 0
    for end in range(1, len(ids) + 1):
        text = tokenizer.decode(ids[:end])
        if end < len(ids):
            text = text.rstrip("\ufffd")
        out.append(text[shown:])
        shown = max(shown, len(text))  # some tokenizers unread a character until the next one is whole
    return out
