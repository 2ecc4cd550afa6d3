"""What a model says of some places of a text given others, and texts that are filled in by it.

A text is (B, T) ids, FREE where a place is. `Reader` gives the conditionals of a model of any order with a
cache of what is known, `MaskedReader` those of masked diffusion, `Exact` those of a known truth. The samplers
need no more than what these have in common (`Conditionals`): tokens drawn one at a time, in bursts by the
paper's rule, by speculative sampling, or by diffusion.
Source: Pannatier, Courdier, Fleuret 2024, arXiv 2404.09562 (sigma-GPT).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from evaluation.sampling import draw
from heads import Weights
from model import GPT, Cache, LanguageModel
from runtime.checkpoint import Degenerate
from runtime.device import autocast, get_dtype
from runtime.errors import UserError

Cut = Callable[[Tensor], Tensor]  # log p (N, V) -> the probabilities (N, V) that are sampled from
FREE = -1


class Distributions(Protocol):
    """One for each of (B, F) places."""

    def draw(self, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """A token of each (B, F), and its probability, float64."""
        ...

    def probs(self, tokens: Tensor) -> Tensor:
        """Of tokens (B, F), one at each place: (B, F), float64."""
        ...

    def row(self, at: Tensor) -> Tensor:
        """The whole distribution at place number `at` (B,) of each row: (B, V), float64."""
        ...

    def picked(self, better: Tensor, other: "Distributions") -> "Distributions":
        """Those of `other` in the rows that are `better` (B,) bool, here these."""
        ...


class Conditionals(Protocol):
    """Of a batch of texts, some places of which are known."""

    text: Tensor  # (B, T) of ids, FREE where a place is

    def each(self, places: Tensor) -> Distributions:
        """p(x_i | known) at each of places (B, F), apart from each other."""
        ...

    def along(self, places: Tensor, tokens: Tensor) -> Distributions:
        """q(x_i | known, the tokens at the places before it) along places (B, F), where `tokens` (B, F)
        stand."""
        ...

    def accept(self, said: Distributions, places: Tensor, tokens: Tensor, count: Tensor) -> None:
        """Makes the first `count` (B,) of places (B, F) known. `said`: what `along` gave for these places,
        and for the same tokens but the last of them."""
        ...


def reader_of(
    model: LanguageModel,
    text: Tensor,
    draws: list[Weights],
    cut: Cut = lambda log_p: log_p.exp(),
    dtype: str = "float32",
) -> "Reader | MaskedReader":
    """A model's conditionals. UserError if it reads from left to right alone."""
    check_fills(model)
    kind = Reader if model.trunk.config.order == "any" else MaskedReader
    return kind(model, text, draws, cut, dtype)


def check_fills(model: LanguageModel) -> None:
    """UserError if a model cannot fill in a gap."""
    if model.trunk.config.order == "left_to_right":
        raise UserError(
            "this model reads from left to right, it cannot see what stands after a gap: give a checkpoint "
            "that was trained with --order=random (config/sigma_gpt.py) or --order=masked"
        )


# -----------------------------------------------------------------------------
# A model's


class Reader:
    """`Conditionals` of a model of any order, with a cache: each token is read once, when it is accepted.

    The known tokens of `text` (B, T), T at most block_size, are read first, from left to right. Known places
    may differ from row to row, in number, too. `passes` counts model evaluations. The model is in eval mode.
    What is decided about (texts, places, probabilities of single tokens) is on the CPU, what is large on the
    model's device.
    """

    def __init__(
        self,
        model: LanguageModel,
        text: Tensor,
        draws: list[Weights],
        cut: Cut = lambda log_p: log_p.exp(),
        dtype: str = "float32",
    ):
        assert isinstance(model.trunk, GPT)
        self.model, self.trunk, self.draws, self.cut, self.dtype = model, model.trunk, draws, cut, dtype
        text = text.cpu()
        B, T = text.shape
        self.text, self.passes = torch.full_like(text, FREE), 0
        # what was read last: its place and token. It is read anew with each place that it is to predict
        self.place = torch.full((B,), self.trunk.config.block_size)
        self.last = torch.full((B,), self.trunk.config.vocab_size)
        self.read = torch.zeros(B, dtype=torch.long)  # slots of the cache that are filled
        wte = self.trunk.wte.weight
        kept = get_dtype(dtype) if wte.dtype == torch.float32 else wte.dtype  # float64 in the tests
        self.device, self.cache = wte.device, Cache(self.trunk, B, kept, 2 * T)
        known = (text != FREE).sum(1)
        if known.any():
            places = (text == FREE).int().argsort(dim=1, stable=True)[:, : int(known.max())]
            tokens = text.gather(1, places)
            self.accept(self.along(places, tokens.clamp(min=0)), places, tokens, known)

    def each(self, places: Tensor) -> "Hidden":
        n = places.shape[1]
        own, tokens = (t[:, None].expand(-1, n) for t in (self.place, self.last))
        return self._pass(tokens, own, places, torch.eye(n, dtype=torch.bool))

    def along(self, places: Tensor, tokens: Tensor) -> "Hidden":
        n = places.shape[1]
        own = torch.cat((self.place[:, None], places[:, :-1]), 1)
        read = torch.cat((self.last[:, None], tokens[:, :-1]), 1)
        return self._pass(read, own, places, torch.ones(n, n, dtype=torch.bool).tril())

    @torch.no_grad()
    def _pass(self, tokens: Tensor, own: Tensor, following: Tensor, seen: Tensor) -> "Hidden":
        """Reads tokens (B, F) after the cache, each with the place that it predicts; `seen` (F, F): which of
        them see which. They leave no trace in the cache."""
        start, (B, n) = self.cache.length, tokens.shape
        filled = torch.arange(start) < self.read[:, None]  # (B, start)
        mask = torch.cat((filled[:, None].expand(-1, n, -1), seen.expand(B, -1, -1)), 2)
        read, places, mask = (t.to(self.device) for t in (tokens, torch.stack((own, following), -1), mask))
        with autocast(self.device, self.dtype):
            hidden = self.trunk(read, places, self.cache, mask)
        self.cache.length = start
        self.passes += 1
        return Hidden(self, hidden, self.cache.kv[:, :, :, :, start : start + n].clone())

    def accept(self, said: Distributions, places: Tensor, tokens: Tensor, count: Tensor) -> None:
        assert isinstance(said, Hidden) and said.kv is not None
        rows, at = _put(self.text, places, tokens, count)
        row, slot, number = (t.to(self.device) for t in (rows, self.read[rows] + at, at))
        self.cache.kv[:, :, row, :, slot] = said.kv[:, :, row, :, number]
        self.read = self.read + count
        self.cache.length = int(self.read.max())
        last = (count - 1).clamp(min=0)[:, None]
        self.place = torch.where(count > 0, places.gather(1, last)[:, 0], self.place)
        self.last = torch.where(count > 0, tokens.gather(1, last)[:, 0], self.last)


def _put(text: Tensor, places: Tensor, tokens: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Writes the first `count` (B,) of tokens (B, F) at their places; (row, number) of each."""
    rows, at = _firsts(count)
    text[rows, places[rows, at]] = tokens[rows, at]
    return rows, at


def _firsts(count: Tensor) -> tuple[Tensor, Tensor]:
    """(row, number) of the first `count` (B,) of each row."""
    most = int(count.max()) if len(count) else 0
    rows, at = (torch.arange(most) < count[:, None]).nonzero(as_tuple=True)
    return rows, at


@dataclass
class Hidden:
    """`Distributions` as the hidden states (B, F, C) that they are made of, and the keys and values of what
    was read."""

    reader: "Reader | MaskedReader"
    hidden: Tensor
    kv: Tensor | None = None  # (n_layer, 2, B, nh, F, hs)

    def draw(self, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        def drawn(p: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
            token = draw(p, generator)
            return token, p.gather(1, token)

        tokens, p = zip(*self._blocks(drawn))
        shape = self.hidden.shape[:2]
        return torch.cat(tokens).cpu().view(shape), torch.cat(p).cpu().double().view(shape)

    def probs(self, tokens: Tensor) -> Tensor:
        flat = tokens.reshape(-1, 1).to(self.hidden.device)
        parts = self._blocks(lambda p, rows: p.gather(1, flat[rows]))
        return torch.cat(parts).cpu().double().view(tokens.shape)

    def row(self, at: Tensor) -> Tensor:
        number = at.to(self.hidden.device)
        hidden = self.hidden[torch.arange(len(at), device=number.device), number]
        return torch.cat(Hidden(self.reader, hidden[:, None])._blocks(lambda p, rows: p.cpu().double()))

    def picked(self, better: Tensor, other: Distributions) -> "Hidden":
        assert isinstance(other, Hidden) and self.kv is not None and other.kv is not None
        better = better.to(self.hidden.device)[:, None, None]
        hidden = torch.where(better, other.hidden, self.hidden)
        return Hidden(self.reader, hidden, torch.where(better[:, None], other.kv, self.kv))

    def _blocks(self, use: Callable) -> list:
        """`use(p, rows)` of the probabilities of a few rows at a time."""
        r = self.reader
        with autocast(self.hidden.device, r.dtype):
            blocks = r.model.head.log_prob_blocks(self.hidden.flatten(0, 1), r.draws)
            return [use(r.cut(_sound(log_p)), rows) for rows, log_p in blocks]


def _sound(log_p: Tensor) -> Tensor:
    if not log_p.amax(1).isfinite().all():
        raise Degenerate("its log-probabilities are not numbers")
    return log_p


class MaskedReader:
    """`Conditionals` of masked diffusion: each pass reads the whole text, and gives `each`. `along` more than
    one place there is none."""

    def __init__(
        self,
        model: LanguageModel,
        text: Tensor,
        draws: list[Weights],
        cut: Cut = lambda log_p: log_p.exp(),
        dtype: str = "float32",
    ):
        self.model, self.draws, self.cut, self.dtype = model, draws, cut, dtype
        self.text, self.passes = text.cpu().clone(), 0

    @torch.no_grad()
    def each(self, places: Tensor) -> "Hidden":
        device, c = next(self.model.parameters()).device, self.model.trunk.config
        # it knows whole blocks alone: what stands after the text is hidden, not absent
        text = F.pad(self.text, (0, c.block_size - self.text.shape[1]), value=FREE)
        read = torch.where(text == FREE, c.vocab_size, text).to(device)
        with autocast(device, self.dtype):
            hidden = self.model.trunk(read)
        self.passes += 1
        at = places[:, :, None].expand(-1, -1, hidden.shape[2]).to(device)
        return Hidden(self, hidden.gather(1, at))

    def along(self, places: Tensor, tokens: Tensor) -> "Hidden":
        assert places.shape[1] == 1
        return self.each(places)

    def accept(self, said: Distributions, places: Tensor, tokens: Tensor, count: Tensor) -> None:
        _put(self.text, places, tokens, count)


# -----------------------------------------------------------------------------
# An exact truth's


class Exact:
    """`Conditionals` of `log_probs`: texts (B, T) -> log p (B, T, V) of each place given the known ones."""

    def __init__(self, log_probs: Callable[[Tensor], Tensor], text: Tensor):
        self.log_probs, self.text, self.passes = log_probs, text.clone(), 0

    def each(self, places: Tensor) -> "Table":
        self.passes += 1
        return Table(self._at(self.text, places))

    def along(self, places: Tensor, tokens: Tensor) -> "Table":
        self.passes += 1
        text, rows = self.text.clone(), []
        for n in range(places.shape[1]):
            at = places[:, n : n + 1]
            rows.append(self._at(text, at))
            possible = rows[-1][:, 0].gather(1, tokens[:, n : n + 1]) > 0
            free = text.gather(1, at) == FREE
            # after a token that cannot be, nothing is defined, and nothing is asked
            text.scatter_(1, at, torch.where(free & possible, tokens[:, n : n + 1], text.gather(1, at)))
        return Table(torch.cat(rows, 1))

    def accept(self, said: Distributions, places: Tensor, tokens: Tensor, count: Tensor) -> None:
        _put(self.text, places, tokens, count)

    def _at(self, text: Tensor, places: Tensor) -> Tensor:
        p = self.log_probs(text).exp()
        return p.gather(1, places[:, :, None].expand(-1, -1, p.shape[2]))


class Table(NamedTuple):
    """`Distributions` as probabilities (B, F, V)."""

    p: Tensor

    def draw(self, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        tokens = _drawn(self.p.flatten(0, 1), generator).view(self.p.shape[:2])
        return tokens, self.probs(tokens)

    def probs(self, tokens: Tensor) -> Tensor:
        return self.p.gather(2, tokens[:, :, None]).squeeze(2)

    def row(self, at: Tensor) -> Tensor:
        return self.p[torch.arange(len(at)), at]

    def picked(self, better: Tensor, other: Distributions) -> "Table":
        assert isinstance(other, Table)
        return Table(torch.where(better[:, None, None], other.p, self.p))


# -----------------------------------------------------------------------------
# Samplers: each fills in the free places of `c.text`


class Filled(NamedTuple):
    """How a batch of texts was filled in."""

    text: Tensor  # (B, T)
    rank: Tensor  # (B, T) in which round a place was filled, from 1 on; 0 where it was known
    rounds: int
    passes: int  # model evaluations


Watch = Callable[[Tensor, Tensor], None]  # is given `text` and `rank` as they are, after each round


def unwatched(text: Tensor, rank: Tensor) -> None:
    pass


def uniform(shape: torch.Size, generator: torch.Generator | None) -> Tensor:
    """Uniform numbers in float64 on the CPU, wherever the generator is."""
    device = generator.device if generator else "cpu"
    return torch.rand(shape, generator=generator, dtype=torch.float64, device=device).cpu()


def shuffled(text: Tensor, generator: torch.Generator | None) -> Tensor:
    """The free places of each text in a random order, (B, F); rows with fewer go on with known places."""
    keys = uniform(text.shape, generator)
    return keys.masked_fill(text != FREE, 2.0).argsort(1)[:, : int((text == FREE).sum(1).max())]


def one_by_one(
    c: Conditionals,
    generator: torch.Generator | None = None,
    watch: Watch = unwatched,
    places: Tensor | None = None,
) -> Filled:
    """One token a pass, at `places` (B, F) in their order; None: in random order."""
    places = shuffled(c.text, generator) if places is None else places
    rank, free = torch.zeros_like(c.text), c.text == FREE
    for n in range(places.shape[1]):
        at = places[:, n : n + 1]
        count = free.gather(1, at)[:, 0].long()
        said = c.along(at, torch.zeros_like(at))
        tokens, _ = said.draw(generator)
        c.accept(said, at, tokens, count)
        rank.scatter_(1, at, torch.where(count[:, None] > 0, n + 1, rank.gather(1, at)))
        watch(c.text, rank)
    return Filled(c.text, rank, places.shape[1], places.shape[1])


def diffusion(
    c: Conditionals, steps: int, generator: torch.Generator | None = None, watch: Watch = unwatched
) -> Filled:
    """Masked diffusion's sampler in `steps` rounds: with n of them left, each free place is filled with the
    probability 1 / n, from p(x_i | known).

    Whether a place is filled and with which token are two draws, both in float64: one draw over V + 1
    outcomes in float32 lowers the temperature (Zheng et al. 2024, arXiv 2409.02908). Places that are filled
    in one round do not see each other. Source: Sahoo et al. 2024, arXiv 2406.07524, sec. 3.2, with the linear
    schedule. A round in which no place is filled needs no pass.
    """
    rank, passes = torch.zeros_like(c.text), 0
    for n in range(steps, 0, -1):
        u = uniform(c.text.shape, generator)
        now = (c.text == FREE) & (u * n < 1)
        if not now.any():
            continue
        count = now.sum(1)
        places = (~now).int().argsort(dim=1, stable=True)[:, : int(count.max())]
        said = c.each(places)
        tokens, _ = said.draw(generator)
        c.accept(said, places, tokens, count)
        passes += 1
        rank = torch.where(now, steps - n + 1, rank)
        watch(c.text, rank)
    return Filled(c.text, rank, passes, passes)


def burst(
    c: Conditionals, orders: int = 1, generator: torch.Generator | None = None, watch: Watch = unwatched
) -> Filled:
    """The paper's algorithm 1: all free places are drawn at once, each from p(x_i | known). In each of
    `orders` random orders token i is accepted with probability min(1, q / p), q given those before it (the
    algorithm prints p / q; appendix B.1 and its results mean q / p). The order that accepts most before its
    first rejection is kept, the rest is drawn anew.

    It does not keep the distribution: a rejected token is drawn again from p, not from what p lacks of q, and
    the best order is chosen by what it accepts.
    """
    return _in_bursts(c, orders, generator, watch, exact=False)


def speculative(
    c: Conditionals, generator: torch.Generator | None = None, watch: Watch = unwatched
) -> Filled:
    """As `burst` with one order, but the token that is rejected is drawn from max(q - p, 0), normalised. So
    each text has the distribution of one that is drawn token by token in a random order, and takes at most as
    many passes as it has free places.

    Source: Leviathan et al. 2023, arXiv 2211.17192, with the model of any order as its own draft.
    """
    return _in_bursts(c, 1, generator, watch, exact=True)


class _Draft(NamedTuple):
    """What is proposed in a round, (B, F) each, free places first."""

    places: Tensor
    tokens: Tensor
    p: Tensor  # with which each token was drawn
    u: Tensor  # uniform: a token is accepted where u < q / p
    number: Tensor  # of each place in the round's first order

    def along(self, order: Tensor) -> "_Draft":
        return _Draft(*(t.gather(1, order) for t in self))


def _in_bursts(
    c: Conditionals, orders: int, generator: torch.Generator | None, watch: Watch, exact: bool
) -> Filled:
    rank, rounds, passes = torch.zeros_like(c.text), 0, 0
    while (c.text == FREE).any():
        rounds += 1
        left = (c.text == FREE).sum(1)  # (B,)
        places = shuffled(c.text, generator)
        each = c.each(places)
        tokens, p = each.draw(generator)
        if places.shape[1] == 1:
            said, kept, count = each, places, left
        else:
            u = uniform(p.shape, generator)
            number = torch.arange(p.shape[1]).expand_as(places)
            draft = _Draft(places, tokens, p, u, number)
            said, draft, count = _best_order(c, draft, left, orders, generator)
            if exact:
                draft, count = _with_residual(each, said, draft, left, count, generator)
            kept, tokens, passes = draft.places, draft.tokens, passes + orders
        passes += 1
        c.accept(said, kept, tokens, count)
        rows, at = _firsts(count)
        rank[rows, kept[rows, at]] = rounds
        watch(c.text, rank)
    return Filled(c.text, rank, rounds, passes)


def _best_order(
    c: Conditionals, draft: _Draft, left: Tensor, orders: int, generator: torch.Generator | None
) -> tuple[Distributions, _Draft, Tensor]:
    """(q along the order that accepts most before its first rejection, the draft in that order, how many (B,)
    it accepts)."""
    none = torch.arange(draft.p.shape[1]) >= left[:, None]  # no free place
    best: tuple[Distributions, _Draft, Tensor] | None = None
    for n in range(orders):
        now = draft
        if n:
            keys = uniform(none.shape, generator)
            now = draft.along(keys.masked_fill(none, 2.0).argsort(1))
        q = c.along(now.places, now.tokens)
        stops = none | (now.u * now.p >= q.probs(now.tokens))
        count = torch.where(stops.any(1), stops.int().argmax(1), left)
        if best is None:
            best = q, now, count
            continue
        better = count > best[2]
        draft_of = _Draft(*(torch.where(better[:, None], a, b) for a, b in zip(now, best[1])))
        best = best[0].picked(better, q), draft_of, torch.maximum(count, best[2])
    assert best is not None
    return best


def _drawn(p: Tensor, generator: torch.Generator | None) -> Tensor:
    """`draw` (N, 1), of probabilities on the CPU with a generator anywhere."""
    return draw(p.to(generator.device) if generator else p, generator).cpu()


def _with_residual(
    each: Distributions,
    said: Distributions,
    draft: _Draft,
    left: Tensor,
    count: Tensor,
    generator: torch.Generator | None,
) -> tuple[_Draft, Tensor]:
    """The draft with the first rejected token drawn anew from max(q - p, 0), and one more (B,) accepted where
    there is one."""
    at = count.clamp(max=draft.p.shape[1] - 1)
    p, q = each.row(draft.number.gather(1, at[:, None])[:, 0]), said.row(at)
    rest = (q - p).clamp(min=0)
    rest = torch.where(rest.sum(1, keepdim=True) > 0, rest, q)  # p and q differ by their rounding alone
    rejected = count < left
    new = torch.where(rejected[:, None], _drawn(rest, generator), draft.tokens.gather(1, at[:, None]))
    return draft._replace(tokens=draft.tokens.scatter(1, at[:, None], new)), count + rejected
