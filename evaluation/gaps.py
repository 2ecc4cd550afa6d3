"""Texts with gaps: read from a template, and the density of what may stand in them.

A template is text in which <5> stands for five tokens: "The river <5> through the <3> of the city".
"""

import re
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from data.tokenizers import Tokenizer, ids_of
from evaluation import figures
from evaluation.any_order import FREE, MaskedReader, Reader
from runtime.errors import UserError
from runtime.files import beside, for_screen, write_json

if TYPE_CHECKING:  # see figures.pyplot
    from matplotlib.axes import Axes

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
    p: Tensor  # (V,)


def candidates(reader: Reader | MaskedReader, tokenizer: Tokenizer, top: int) -> list[Candidates]:
    """The candidates of each free place of one text, given what is known: one pass for all."""
    places = (reader.text[0] == FREE).nonzero().T  # (1, F)
    distributions, out = reader.each(places), []
    for n, place in enumerate(places[0].tolist()):
        p = distributions.row(torch.tensor([n], device=places.device))[0]
        best = p.topk(min(top, len(p)))
        names = [tokenizer.decode([i]) for i in best.indices.tolist()]
        entropy = float(torch.special.entr(p).sum())
        out.append(Candidates(place, names, best.values.tolist(), entropy, p.cpu()))
    return out


# of a terminal's 256 colours, for tokens from the first round to the last
COLOURS = (196, 202, 208, 214, 220, 190, 118, 48, 51, 39, 33, 99)


def coloured(ids: list[int], rank: list[int], tokenizer: Tokenizer, rounds: int = 0) -> str:
    """A text for a terminal: what was filled in has the colour of its round (`rank`), a free place is "_".

    rounds  of the last colour; 0: the last round that there is
    """
    out, known, shown, rounds = [], [], 0, rounds or max(rank)
    for (free, n), run in groupby(zip(ids, rank), lambda pair: (pair[0] == FREE, pair[1])):
        tokens = [i for i, _ in run]
        if free:
            out.append(" _" * len(tokens))
            continue
        known += tokens
        text = tokenizer.decode(known)  # the whole, for a tokenizer may put spaces between its tokens
        if len(known) < len(ids) - ids.count(FREE):
            text = text.rstrip("\ufffd")  # a character whose last token comes in another round
        words, shown = for_screen(text[shown:]), max(shown, len(text))
        colour = COLOURS[(n - 1) * len(COLOURS) // max(1, rounds)]
        out.append(f"\x1b[38;5;{colour}m{words}\x1b[0m" if n else words)
    return "".join(out)


def density_table(densities: list[Candidates]) -> str:
    from tabulate import tabulate  # here: sampling needs it for nothing else

    rows = [
        [c.place, f"{c.entropy:.2f}", *(f"{token!r} {p:.3f}" for token, p in zip(c.tokens, c.probs))]
        for c in densities
    ]
    return tabulate(rows, ["place", "nats", *(f"{i + 1}" for i in range(len(densities[0].tokens)))])


def density_json(densities: list[Candidates]) -> dict[str, Any]:
    """place -> its entropy in nats, and its candidates, the most probable first."""
    return {
        str(c.place): {
            "entropy": c.entropy,
            "candidates": [{"token": t, "p": p} for t, p in zip(c.tokens, c.probs)],
        }
        for c in densities
    }


def save_density(densities: list[Candidates], words: list[str], save: str) -> list[Path]:
    """Writes `save`.json and the picture `save`.png: the candidates of each place of the text, whose
    tokens are `words`, by their probability."""
    path = Path(save)
    write_json(beside(path, ".json"), density_json(densities))
    top = len(densities[0].tokens)
    plt = figures.pyplot()
    fig, ax = plt.subplots(figsize=(max(4, 0.75 * len(words)), 0.5 + 0.3 * top))
    ax.set_axis_off()
    ax.set(xlim=(-0.5, len(words) - 0.5), ylim=(top - 0.5, -0.5))
    at = {c.place: c for c in densities}
    for place, word in enumerate(words):
        if place not in at:
            ax.text(place, 0, word.strip(), ha="center", va="center", weight="bold")
            continue
        for rank, (token, p) in enumerate(zip(at[place].tokens, at[place].probs)):
            colour, ink = plt.cm.Blues(0.8 * p**0.5), "white" if p > 0.5 else "black"
            ax.add_patch(plt.Rectangle((place - 0.48, rank - 0.45), 0.96, 0.9, color=colour))
            word = token.strip() or repr(token)[1:-1]
            ax.text(place, rank, f"{word}\n{p:.2f}", ha="center", va="center", color=ink, size=6)
    return [beside(path, ".json"), *figures.write(fig, path)]


class Piece(NamedTuple):
    """What a token adds to a text, and the round in which it was filled in; 0: it was given."""

    text: str
    rank: int


def pieces(ids: list[int], rank: list[int], tokenizer: Tokenizer) -> list[Piece]:
    """The tokens of a text that is filled in."""
    return [Piece(*piece) for piece in zip(added(ids, tokenizer), rank)]


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


def save_filled(filled: list[Piece], save: str) -> list[Path]:
    """Writes `save`.json, its `tokens` [[text, round], ...], and the picture `save`.png: see draw_filled."""
    path = Path(save)
    write_json(beside(path, ".json"), {"tokens": filled})
    plt = figures.pyplot()
    fig, ax = plt.subplots()
    draw_filled(ax, filled)
    fig.set_size_inches(7, 0.21 * ax.get_ylim()[0])  # of so many lines
    return [beside(path, ".json"), *figures.write(fig, path)]


def draw_filled(ax: "Axes", filled: list[Piece], moments: int = 3, columns: int = 72) -> None:
    """The text before anything is filled in, after equal shares of the rounds, and as a whole.

    What was filled in is coloured by its round, the first dark; a place that is free yet is grey.
    """
    rounds = max(piece.rank for piece in filled)
    times = sorted({round(rounds * n / moments) for n in range(moments + 1)})
    colours, line = figures.pyplot().get_cmap("viridis"), 0.0
    for time in times:
        title = "given" if time == 0 else f"after {time} of {rounds} rounds" if time < rounds else "all"
        ax.text(0, line, title, size=6, color="0.4", va="center")
        line += 1
        column = 0
        for text, rank in filled:
            words = text.replace("\n", " ")
            if column + len(words) > columns:
                line, column, words = line + 1, 0, words.lstrip()
            if rank:
                share = 0.75 * (rank - 1) / max(1, rounds - 1)  # the last ones of viridis are too bright
                colour = colours(share) if rank <= time else "0.9"
                ax.add_patch(
                    figures.pyplot().Rectangle((column, line - 0.42), len(words), 0.84, color=colour, lw=0)
                )
            if rank <= time:
                ink = "white" if rank else "black"
                for n, character in enumerate(words):  # one by one: fonts differ in their widths
                    style: Any = {"family": "monospace", "size": 7, "ha": "center", "va": "center"}
                    ax.text(column + n + 0.5, line, character, color=ink, **style)
            column += len(words)
        line += 1.5
    ax.set_axis_off()
    ax.set(xlim=(0, columns), ylim=(line, -1))
