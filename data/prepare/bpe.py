"""The training of a byte-level BPE."""

import re
import sys
from collections.abc import Iterable, Iterator

import tokenizers

from common.errors import UserError
from data.tokenizers import BPETokenizer, byte_level

LONGEST_WORD = 1000  # characters


def train_bpe(lines: Iterable[str], vocab_size: int) -> BPETokenizer:
    """Train a byte-level BPE of exactly `vocab_size` ids: GPT-2's pre-tokenizer, no normaliser, no special
    tokens.

    Memory grows with the number of different words, not with the length of the text. UserError if the text
    has too few different pairs to reach `vocab_size`.
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
        raise UserError(f"tokenizer = 'bpe{vocab_size}': the text is too small, it yields {tokenizer.name}")
    return tokenizer


def short_words(lines: Iterable[str]) -> Iterator[str]:
    """The lines, those with a word of LONGEST_WORD characters or more in pieces of that length: the time of
    training a BPE grows with the square of a word's length."""
    long = re.compile(rf"\S{{{LONGEST_WORD},}}|\s{{{LONGEST_WORD},}}")
    for line in lines:
        size = LONGEST_WORD if long.search(line) else len(line)
        yield from (line[at : at + size] for at in range(0, len(line), size or 1))
