"""Texts with gaps: read from a template, and the density of what may stand in them.

A template is text in which <5> stands for five tokens: "The river <5> through the <3> of the city".
"""

import re
from typing import TYPE_CHECKING, NamedTuple

import torch

from data.tokenizers import Tokenizer, ids_of
from labs.orders.readers import MaskedReader, Reader
from labs.orders.trunk import FREE
from runtime.errors import UserError

if TYPE_CHECKING:  # see figures.pyplot
    pass

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
        elif len(part) > 9 or int(part) > block_size:  # int() refuses thousands of digits
            raise UserError(f"the gap <{part[:20]}> is longer than this model's block_size = {block_size}")
        elif int(part) < 1:
            raise UserError(f"the gap <{part}> in {template[:60]!r} is of no token: give at least <1>")
        else:
            ids += [FREE] * int(part)
    if len(ids) > block_size:
        raise UserError(
            f"the text has {len(ids)} tokens with its gaps; this model reads {block_size} (block_size): "
            "shorten it"
        )
    return ids


class Candidates(NamedTuple):
    """The most probable tokens of a free place."""

    place: int
    tokens: list[str]
    probs: list[float]
    entropy: float  # nats


def candidates(reader: Reader | MaskedReader, tokenizer: Tokenizer, top: int) -> list[Candidates]:
    """The candidates of each free place of one text, given what is known: one pass for all."""
    places = (reader.text[0] == FREE).nonzero().T  # (1, F)
    distributions, out = reader.each(places), []
    for n, place in enumerate(places[0].tolist()):
        p = distributions.row(torch.tensor([n], device=places.device))[0]
        best = p.topk(min(top, len(p)))
        names = [tokenizer.decode([i]) for i in best.indices.tolist()]
        entropy = float(torch.special.entr(p).sum())
        out.append(Candidates(place, names, best.values.tolist(), entropy))
    return out


def density_table(densities: list[Candidates]) -> str:
    from tabulate import tabulate  # here: sampling needs it for nothing else

    rows = [
        [c.place, f"{c.entropy:.2f}", *(f"{token!r} {p:.3f}" for token, p in zip(c.tokens, c.probs))]
        for c in densities
    ]
    return tabulate(rows, ["place", "nats", *(f"{i + 1}" for i in range(len(densities[0].tokens)))])
