"""Texts with gaps: read from a template, and the density of what may stand in them.

A template is text in which <5> stands for five tokens: "The river <5> through the <3> of the city".
"""

import re

import torch

from data.tokenizers import Tokenizer, ids_of
from labs.orders.readers import MaskedReader, Reader
from labs.sequences.questions import FREE
from runtime.errors import UserError

GAP = re.compile(r" ?<(\d+)>")  # with the space before it: tokens carry their own


def with_gaps(template: str, tokenizer: Tokenizer, block_size: int) -> list[int]:
    """The ids of a template, FREE in its gaps. UserError if it has none, or too much."""
    ids: list[int] = []
    parts = GAP.split(template)  # text, tokens of a gap, text, ...
    if len(parts) == 1:
        raise UserError(f"{template[:60]!r} has no gap: write <5> where five tokens are to be filled in")
    for i, part in enumerate(parts):
        if i % 2 == 0:
            ids += ids_of(part, tokenizer)
        elif len(part) > 9 or not 1 <= int(part) <= block_size:  # int() refuses thousands of digits
            raise UserError(f"the gap <{part[:20]}>: give 1 to {block_size} (block_size)")
        else:
            ids += [FREE] * int(part)
    if len(ids) > block_size:
        raise UserError(f"{len(ids)} tokens with the gaps: this model reads {block_size} (block_size)")
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
