"""Texts with gaps: read from a template, and the density of what may stand in them.

A template is text in which <5> stands for five tokens: "The river <5> through the <3> of the city".
"""

import re

import torch

from common.errors import UserError
from data.tokenizers import Tokenizer, ids_of
from labs.orders.readers import MaskedReader, Reader
from labs.sequences.questions import FREE

GAP = re.compile(r" ?<(\d+)>")  # with the space before it: tokens carry their own


def with_gaps(template: str, tokenizer: Tokenizer, block_size: int) -> list[int]:
    """The ids of a template, FREE in its gaps. UserError if it has none, or too much."""
    ids: list[int] = []
    parts = GAP.split(template)  # text, tokens of a gap, text, ...
    for i, part in enumerate(parts):  # int() refuses thousands of digits
        ids += [FREE] * min(int(part[:9]), block_size + 1) if i % 2 else ids_of(part, tokenizer)
    if FREE not in ids or len(ids) > block_size:
        raise UserError(f"{template[:60]!r}: <5> is a gap of five; {block_size} tokens (block_size) at most")
    return ids


def density_table(reader: Reader | MaskedReader, tokenizer: Tokenizer, top: int) -> str:
    """The entropy (nats) of each free place of one text and its most probable tokens: one pass for all."""
    from tabulate import tabulate  # here: sampling needs it for nothing else

    places = (reader.text[0] == FREE).nonzero().T  # (1, F)
    distributions, rows = reader.each(places), []
    for n, place in enumerate(places[0].tolist()):
        p = distributions.row(torch.tensor([n]))[0]
        best = p.topk(min(top, len(p)))
        tokens = (repr(tokenizer.decode([i])) for i in best.indices.tolist())
        likely = [f"{token} {value:.3f}" for token, value in zip(tokens, best.values.tolist())]
        rows.append([place, f"{torch.special.entr(p).sum():.2f}", *likely])
    return tabulate(rows, ["place", "nats", *(f"{i + 1}" for i in range(len(rows[0]) - 2))])
