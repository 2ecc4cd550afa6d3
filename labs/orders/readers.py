"""What a model says of some places of a text given others, and texts that are filled in by it.

A text is (B, T) ids, FREE where a place is. `Reader` gives the conditionals of a model of any order with a
cache of what is known, `MaskedReader` those of masked diffusion.
Source: Pannatier, Courdier, Fleuret 2024, arXiv 2404.09562 (sigma-GPT).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from common.device import autocast, get_dtype, to_float64
from common.errors import UserError
from evaluate.sampling import draw
from heads import Weights
from labs.orders.trunk import AnyOrder, Masked
from labs.sequences.questions import FREE
from model import Cache, LanguageModel
from training.checkpoint import Degenerate

Cut = Callable[[Tensor], Tensor]  # log p (N, V) -> the probabilities (N, V) that are sampled from


def as_scored(log_p: Tensor) -> Tensor:
    """The model's own distribution: in float64, as float32 has no probability below e^-103."""
    return to_float64(log_p).exp()


def reader_of(
    model: LanguageModel, text: Tensor, draws: list[Weights], cut: Cut = as_scored, dtype: str = "float32"
) -> "Reader | MaskedReader":
    """A model's conditionals. UserError if it reads from left to right alone."""
    if not isinstance(model.trunk, AnyOrder | Masked):
        raise UserError("this model reads from left to right alone: give a run of config/sigma_gpt.py, say")
    kind = Reader if isinstance(model.trunk, AnyOrder) else MaskedReader
    return kind(model, text, draws, cut, dtype)


class Conditionals:
    """A model, how it is asked, and what is known of a batch of texts so far."""

    def __init__(
        self,
        model: LanguageModel,
        text: Tensor,
        draws: list[Weights],
        cut: Cut = as_scored,
        dtype: str = "float32",
    ):
        self.model, self.draws, self.cut, self.dtype = model, draws, cut, dtype
        self.text, self.block_size, self.passes = text.cpu().clone(), model.trunk.config.block_size, 0


class Reader(Conditionals):
    """What a model of any order says of the free places of texts, given the known ones; with a cache: each
    token is read once, when it is accepted.

    each    p(x_i | known) at each of places (B, F), apart from each other
    along   q(x_i | known, the tokens at the places before it) along places (B, F),
            where `tokens` (B, F) stand
    accept  makes the first `count` (B,) of places (B, F) known. `distributions`: what `along` gave for these
            places, and for the same tokens but the last of them
    keep    goes on with some `rows` (B,) bool of the batch: `text` becomes theirs

    The known tokens of `text` (B, T), T at most block_size, are read first, from left to right. Known places
    may differ from row to row, in number, too. `passes` counts model evaluations. The model is in eval mode.
    What is decided about (texts, places, probabilities of single tokens) is on the CPU, what is large on the
    model's device.
    """

    def __init__(self, *asked: Any, **how: Any):
        super().__init__(*asked, **how)
        assert isinstance(self.model.trunk, AnyOrder)
        self.trunk, text, (B, T) = self.model.trunk, self.text, self.text.shape
        self.text = torch.full_like(text, FREE)
        # place and token of what was read last. The model reads it anew with each place that it is to predict
        self.place = torch.full((B,), self.block_size)
        self.last = torch.full((B,), self.trunk.config.vocab_size)
        self.read = torch.zeros(B, dtype=torch.long)  # slots of the cache that are filled
        wte = self.trunk.wte.weight
        kept = get_dtype(self.dtype) if wte.dtype == torch.float32 else wte.dtype  # float64 in the tests
        self.device, self.cache = wte.device, Cache(self.trunk, B, kept, 2 * T)
        known = (text != FREE).sum(1)
        if known.any():
            places = places_of(text != FREE)
            tokens = text.gather(1, places)
            self.accept(self.along(places, tokens.clamp(min=0)), places, tokens, known)

    def each(self, places: Tensor) -> "Hidden":
        n = places.shape[1]
        predicting, tokens = (t[:, None].expand(-1, n) for t in (self.place, self.last))
        return self._pass(tokens, predicting, places, torch.eye(n, dtype=torch.bool))

    def along(self, places: Tensor, tokens: Tensor) -> "Hidden":
        n = places.shape[1]
        predicting = torch.cat((self.place[:, None], places[:, :-1]), 1)
        read = torch.cat((self.last[:, None], tokens[:, :-1]), 1)
        return self._pass(read, predicting, places, torch.ones(n, n, dtype=torch.bool).tril())

    @torch.no_grad()
    def _pass(self, tokens: Tensor, predicting: Tensor, following: Tensor, seen: Tensor) -> "Hidden":
        """Reads tokens (B, F) after the cache, each with the place that it predicts; `seen` (F, F): which of
        them see which. They leave no trace in the cache."""
        start, (B, n) = self.cache.length, tokens.shape
        filled = torch.arange(start) < self.read[:, None]  # (B, start)
        mask = torch.cat((filled[:, None].expand(-1, n, -1), seen.expand(B, -1, -1)), 2)
        read, places, mask = (
            t.to(self.device) for t in (tokens, torch.stack((predicting, following), -1), mask)
        )
        with autocast(self.device, self.dtype):
            hidden = self.trunk(read, places, self.cache, mask)
        self.cache.length = start
        self.passes += 1
        return Hidden(self, hidden, self.cache.kv[:, :, :, :, start : start + n].clone())

    def accept(self, distributions: "Hidden", places: Tensor, tokens: Tensor, count: Tensor) -> None:
        assert distributions.kv is not None
        rows, at = _put(self.text, places, tokens, count)
        row, slot, number = (t.to(self.device) for t in (rows, self.read[rows] + at, at))
        self.cache.kv[:, :, row, :, slot] = distributions.kv[:, :, row, :, number]
        self.read = self.read + count
        self.cache.length = int(self.read.max())
        last = (count - 1).clamp(min=0)[:, None]
        self.place = torch.where(count > 0, places.gather(1, last)[:, 0], self.place)
        self.last = torch.where(count > 0, tokens.gather(1, last)[:, 0], self.last)

    def keep(self, rows: Tensor) -> None:
        self.text, self.place, self.last, self.read = (
            t[rows] for t in (self.text, self.place, self.last, self.read)
        )
        self.cache.kv = self.cache.kv[:, :, rows.to(self.device)]
        self.cache.length = int(self.read.max())


def draw_tokens(p: Tensor, generator: torch.Generator | None) -> Tensor:
    """`draw` (N, 1), of probabilities on the CPU with a generator anywhere."""
    return draw(p.to(generator.device) if generator else p, generator).cpu()


def _put(text: Tensor, places: Tensor, tokens: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Writes the first `count` (B,) of tokens (B, F) at their places; (row, number) of each."""
    most = int(count.max()) if len(count) else 0
    rows, at = (torch.arange(most) < count[:, None]).nonzero(as_tuple=True)
    text[rows, places[rows, at]] = tokens[rows, at]
    return rows, at


def places_of(some: Tensor) -> Tensor:
    """The places (B, F) where `some` (B, T), bool, is true, from left to right; F is the most that a row has,
    and rows with fewer go on with other places."""
    return (~some).int().argsort(dim=1, stable=True)[:, : int(some.sum(1).max())]


@dataclass
class Hidden:
    """A distribution for each of (B, F) places, as the hidden states (B, F, C) that they are made of, and the
    keys and values of what was read. Probabilities are float64."""

    reader: "Reader | MaskedReader"
    hidden: Tensor
    kv: Tensor | None = None  # (n_layer, 2, B, nh, F, hs)

    def draw(self, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """A token of each (B, F), and its probability."""

        def draw_block(p: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
            token = draw(p, generator)
            return token, p.gather(1, token)

        tokens, p = zip(*self._blocks(draw_block))
        shape = self.hidden.shape[:2]
        return torch.cat(tokens).cpu().view(shape), torch.cat(p).cpu().double().view(shape)

    def probs(self, tokens: Tensor) -> Tensor:
        """The probability of tokens (B, F), one at each place: (B, F)."""
        flat = tokens.reshape(-1, 1).to(self.hidden.device)
        parts = self._blocks(lambda p, rows: p.gather(1, flat[rows].to(p.device)))
        return torch.cat(parts).cpu().double().view(tokens.shape)

    def row(self, at: Tensor) -> Tensor:
        """The whole distribution at place number `at` (B,) of each row: (B, V)."""
        number = at.to(self.hidden.device)
        hidden = self.hidden[torch.arange(len(at), device=number.device), number]
        return torch.cat(Hidden(self.reader, hidden[:, None])._blocks(lambda p, rows: p.cpu().double()))

    def certainty(self) -> Tensor:
        """The largest probability of each (B, F)."""
        # of the model's own distribution: a temperature of 0 would make all places equally sure
        parts = self._blocks(lambda p, rows: p.amax(1), cut=as_scored)
        return torch.cat(parts).cpu().view(self.hidden.shape[:2])

    def at(self, numbers: Tensor) -> "Hidden":
        """Those at places number `numbers` (B, K) of each row."""
        numbers = numbers.to(self.hidden.device)
        row = torch.arange(len(numbers), device=numbers.device)[:, None]
        kv = None if self.kv is None else self.kv.permute(2, 4, 0, 1, 3, 5)[row, numbers]
        return Hidden(
            self.reader, self.hidden[row, numbers], kv if kv is None else kv.permute(2, 3, 0, 4, 1, 5)
        )

    def _blocks(self, use: Callable, cut: Cut | None = None) -> list:
        """`use(p, rows)` of the probabilities of a few rows at a time, after the reader's cut or another."""
        r = self.reader
        cut = cut or r.cut
        with autocast(self.hidden.device, r.dtype):
            blocks = r.model.head.log_prob_blocks(self.hidden.flatten(0, 1), r.draws)
            return [use(cut(_sound(log_p)), rows) for rows, log_p in blocks]


def _sound(log_p: Tensor) -> Tensor:
    if not log_p.amax(1).isfinite().all():
        raise Degenerate("its log-probabilities are not numbers")
    return log_p


class MaskedReader(Conditionals):
    """The same of masked diffusion: each pass reads the whole text, and gives `each`; `along` for one place
    only."""

    @torch.no_grad()
    def each(self, places: Tensor) -> "Hidden":
        device, c = next(self.model.parameters()).device, self.model.trunk.config
        # the model knows whole blocks only: the places after the text are hidden, not absent
        text = F.pad(self.text, (0, self.block_size - self.text.shape[1]), value=FREE)
        read = torch.where(text == FREE, c.vocab_size, text).to(device)
        with autocast(device, self.dtype):
            hidden = self.model.trunk(read)
        self.passes += 1
        at = places[:, :, None].expand(-1, -1, hidden.shape[2]).to(device)
        return Hidden(self, hidden.gather(1, at))

    def along(self, places: Tensor, tokens: Tensor) -> "Hidden":
        return self.each(places)

    def accept(self, distributions: "Hidden", places: Tensor, tokens: Tensor, count: Tensor) -> None:
        _put(self.text, places, tokens, count)

    def keep(self, rows: Tensor) -> None:
        self.text = self.text[rows]
