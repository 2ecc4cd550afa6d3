"""Samplers that fill in the free places of a batch of texts, given what a model says of some places given
others (readers.py): a token a pass, in bursts by the paper's rule, by speculative sampling, by
diffusion, and where the model is surest first.

Source: Pannatier, Courdier, Fleuret 2024, arXiv 2404.09562 (sigma-GPT).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from labs.orders.readers import Hidden, MaskedReader, Reader, draw_tokens, places_of
from labs.sequences.paths import ORDERS
from labs.sequences.questions import FREE

Conditionals = Reader | MaskedReader


class Filled(NamedTuple):
    """How a batch of texts was filled in."""

    text: Tensor  # (B, T)
    rank: Tensor  # (B, T) in which round a place was filled, from 1 on; 0 where it was known
    rounds: int
    passes: int  # model evaluations
    # (B, T) with which each token was drawn, 1 where it was known, float64; None where draws are rejected
    p: Tensor | None = None

    @property
    def log_p(self) -> Tensor | None:
        """(B,) log probability, nats, of what was filled in, at the places that were taken one after the
        other; None where `p` is."""
        return None if self.p is None else self.p.log().sum(1)


class Filling:
    """The texts of a batch while they are filled in, round by round. One that is done takes no part in the
    passes for the others."""

    def __init__(self, c: Conditionals):
        self.c, self.rounds = c, 0
        self.text, self.rank = c.text.clone(), torch.zeros_like(c.text)
        self.p = torch.ones(c.text.shape, dtype=torch.float64)
        self.rows = torch.arange(len(c.text))  # those that `c` still has

    def goes_on(self) -> bool:
        """Whether there is a round to come. `c` goes on with the texts that have a free place."""
        free = (self.c.text == FREE).any(1)
        if free.any() and not free.all():
            self.c.keep(free)
            self.rows = self.rows[free]
        self.rounds += int(free.any())
        return bool(free.any())

    def accept(
        self, distributions: Hidden, places: Tensor, tokens: Tensor, count: Tensor, p: Tensor | None = None
    ) -> None:
        if p is not None:
            self.p[self.rows] = put(self.p[self.rows], places, p, count)
        free = self.c.text == FREE
        self.c.accept(distributions, places, tokens, count)
        filled = free & (self.c.text != FREE)
        self.rank[self.rows] = torch.where(filled, self.rounds, self.rank[self.rows])
        self.text[self.rows] = self.c.text


def put(values: Tensor, places: Tensor, new: Tensor, count: Tensor) -> Tensor:
    """`values` (B, T) with the first `count` (B,) of `new` (B, F) at their places (B, F)."""
    replaced = torch.arange(places.shape[1]) < count[:, None]
    return values.scatter(1, places, torch.where(replaced, new.to(values.dtype), values.gather(1, places)))


def uniform(shape: torch.Size, generator: torch.Generator | None) -> Tensor:
    """Uniform numbers in float64 on the CPU, wherever the generator is."""
    device = generator.device if generator else "cpu"
    return torch.rand(shape, generator=generator, dtype=torch.float64, device=device).cpu()


def random_places(text: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """(the free places of each text in a random order, (B, F), how many (B,) they are); rows with fewer go on
    with other places."""
    free = text == FREE
    left = free.sum(1)
    return uniform(text.shape, generator).masked_fill(~free, 2.0).argsort(1)[:, : int(left.max())], left


def one_by_one(
    c: Conditionals, generator: torch.Generator | None = None, places: Tensor | None = None
) -> Filled:
    """One token a pass, at `places` (B, F) in their order; None: in random order."""
    places = random_places(c.text, generator)[0] if places is None else places
    batch, free = Filling(c), c.text == FREE
    for at in places.split(1, 1):
        batch.rounds += 1
        distributions = c.along(at, torch.zeros_like(at))
        tokens, p = distributions.draw(generator)
        batch.accept(distributions, at, tokens, free.gather(1, at)[:, 0].long(), p)
    return Filled(batch.text, batch.rank, batch.rounds, batch.rounds, batch.p)


def paths_of(c: Conditionals, order: str, generator: torch.Generator | None, given: int = 0) -> Tensor:
    """A path of each text (B, T - given), drawn for the whole block as in training, or for what comes after
    its first `given` places."""
    device = generator.device if generator else "cpu"
    rng = np.random.default_rng(int(torch.randint(2**62, (), generator=generator, device=device)))
    paths = given + torch.from_numpy(np.stack([ORDERS[order](c.block_size - given, rng) for _ in c.text]))
    return paths[paths < c.text.shape[1]].view(len(c.text), -1)


def free_along(text: Tensor, paths: Tensor) -> tuple[Tensor, Tensor]:
    """(the free places of each text along its path, (B, F), how many (B,) they are); rows with fewer go on
    with other places."""
    free = text.gather(1, paths) == FREE
    left = free.sum(1)
    return paths.gather(1, free.logical_not().long().argsort(dim=1, stable=True))[:, : int(left.max())], left


def in_order(c: Conditionals, generator: torch.Generator, *, order: str, given: int = 0) -> Filled:
    """One token a pass, at the free places as they come in `order`: see `paths_of`."""
    places = None if order == "random" else free_along(c.text, paths_of(c, order, generator, given))[0]
    return one_by_one(c, generator, places)


def diffusion(c: Conditionals, steps: int, generator: torch.Generator | None = None) -> Filled:
    """Masked diffusion's sampler in `steps` rounds: with n of them left, each free place is filled with the
    probability 1 / n, from p(x_i | known).

    Whether a place is filled and with which token are two draws, both in float64: one draw over V + 1
    outcomes in float32 lowers the temperature (Zheng et al. 2024, arXiv 2409.02908). Places that are filled
    in one round do not see each other. Source: Sahoo et al. 2024, arXiv 2406.07524, sec. 3.2, with the linear
    schedule. A round in which no place is filled needs no pass.
    """
    rank, passes = torch.zeros_like(c.text), 0
    p = torch.ones(rank.shape, dtype=torch.float64)
    for n in range(steps, 0, -1):
        now = (c.text == FREE) & (uniform(c.text.shape, generator) * n < 1)
        if not now.any():
            continue
        count, places = now.sum(1), places_of(now)
        distributions = c.each(places)
        tokens, drawn_with = distributions.draw(generator)
        c.accept(distributions, places, tokens, count)
        p = put(p, places, drawn_with, count)
        passes += 1
        rank = torch.where(now, steps - n + 1, rank)
    return Filled(c.text, rank, passes, passes, p)


def surest_first(
    c: Conditionals,
    generator: torch.Generator | None = None,
    target: Tensor | None = None,
    leftmost: bool = False,
) -> Filled:
    """Fills the free place of which the model is surest, its largest probability (Chang et al. 2022, arXiv
    2202.04200), then asks it again; or the `leftmost` one.

    Which place comes next follows from what is known. So `Filled.log_p` is the exact log probability with
    which this sampler writes the text. `target` (B, T): its tokens are written in place of draws, which gives
    their log probability (DUEL: Turok et al. 2026, arXiv 2603.01367).
    """
    batch = Filling(c)
    while batch.goes_on():
        free = c.text == FREE
        places = places_of(free)
        each = c.each(places)
        none = torch.arange(places.shape[1]) >= free.sum(1)[:, None]  # no free place
        sure = -places.double() if leftmost else each.certainty()
        at = sure.masked_fill(none, -torch.inf).argsort(dim=1, descending=True, stable=True)[:, :1]
        places, surest = places.gather(1, at), each.at(at)
        tokens = surest.draw(generator)[0] if target is None else target[batch.rows].gather(1, places)
        batch.accept(surest, places, tokens, torch.ones(len(at), dtype=torch.long), surest.probs(tokens))
    return Filled(batch.text, batch.rank, batch.rounds, batch.rounds, batch.p)


def burst(c: Conditionals, generator: torch.Generator | None = None) -> Filled:
    """The paper's algorithm 1, with one order: all free places are drawn at once, each from p(x_i | known).
    In random order token i is accepted with probability min(1, q / p), q given those before it (the algorithm
    prints p / q; appendix B.1 and its results mean q / p). After the first rejection all is drawn anew.

    It does not keep the distribution: a rejected token is drawn again from p, not from what p lacks of q.
    """
    return _in_bursts(c, lambda rows: random_places(c.text, generator), generator, exact=False)


def speculative(c: Conditionals, generator: torch.Generator | None = None, order: str = "random") -> Filled:
    """As `burst`, but the token that is rejected is drawn from max(q - p, 0), normalised. So each text has
    the distribution of one that is drawn token by token in that order, and takes at most as many passes as it
    has free places.

    Source: Leviathan et al. 2023, arXiv 2211.17192, with the model of any order as its own draft.
    """
    if order == "random":
        return _in_bursts(c, lambda rows: random_places(c.text, generator), generator, exact=True)
    paths = paths_of(c, order, generator)
    return _in_bursts(c, lambda rows: free_along(c.text, paths[rows]), generator, exact=True)


def _in_bursts(
    c: Conditionals,
    proposed: Callable[[Tensor], tuple[Tensor, Tensor]],
    generator: torch.Generator | None,
    exact: bool,
) -> Filled:
    """`proposed`: the rows of the batch that `c` still has -> their free places in their order, (B, F), and
    how many (B,) they are."""
    batch, passes = Filling(c), 0
    while batch.goes_on():
        places, left = proposed(batch.rows)
        each = c.each(places)
        tokens, p = each.draw(generator)
        passes += 1
        if places.shape[1] == 1:
            batch.accept(each, places, tokens, left)
            continue
        u = uniform(p.shape, generator)
        q = c.along(places, tokens)
        passes += 1
        none = torch.arange(p.shape[1]) >= left[:, None]  # no free place
        stops = none | (u * p >= q.probs(tokens))
        count = torch.where(stops.any(1), stops.int().argmax(1), left)
        if exact:
            tokens, count = _with_residual(each, q, tokens, left, count, generator)
        batch.accept(q, places, tokens, count)
    return Filled(batch.text, batch.rank, batch.rounds, passes)


def _with_residual(
    each: Hidden,
    along: Hidden,
    tokens: Tensor,
    left: Tensor,
    count: Tensor,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor]:
    """The tokens (B, F) with the first rejected one drawn anew from max(q - p, 0), and one more (B,) accepted
    where there is one."""
    at = count.clamp(max=tokens.shape[1] - 1)
    p, q = each.row(at), along.row(at)
    rest = (q - p).clamp(min=0)
    rest = torch.where(rest.sum(1, keepdim=True) > 0, rest, q)  # p and q differ by their rounding alone
    rejected = count < left
    new = torch.where(rejected[:, None], draw_tokens(rest, generator), tokens.gather(1, at[:, None]))
    return tokens.scatter(1, at[:, None], new), count + rejected
