"""Texts with gaps, as a user writes them."""

import re

from common.errors import UserError
from data.tokenizers import Tokenizer, ids_of
from labs.sequences.questions import FREE

GAP = re.compile(r" ?<(\d+)>")  # with the space before it: tokens carry their own


def with_gaps(template: str, tokenizer: Tokenizer, block_size: int) -> list[int]:
    """The ids of a text such as "The river <5> of the city", FREE in its gaps. UserError if it has none, or
    too much."""
    ids: list[int] = []
    parts = GAP.split(template)  # text, tokens of a gap, text, ...
    for i, part in enumerate(parts):  # int() refuses thousands of digits
        ids += [FREE] * min(int(part[:9]), block_size + 1) if i % 2 else ids_of(part, tokenizer)
    if FREE not in ids or len(ids) > block_size:
        raise UserError(f"{template[:60]!r}: <5> is a gap of five; {block_size} tokens (block_size) at most")
    return ids
