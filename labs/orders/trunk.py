"""Trunks of any order (sigma-GPT) and of masked diffusion, and the orders that they are trained in.

A path is a permutation of the places 0, ..., T - 1: the first is predicted from nothing, each other one from
those before it. Source: Pannatier, Courdier, Fleuret 2024, arXiv 2404.09562 (sigma-GPT).
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache, partial

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from model import GPT, Attention, Cache, GPTConfig, Plan, Read, Step


@lru_cache(maxsize=8)
def fractal(T: int) -> np.ndarray:
    """The middle, then the middles of the two halves, and so on, level by level. Source: sec. 2.5."""
    path, level = [], [(0, T)]
    while level:
        path += [(a + b) // 2 for a, b in level]
        halves = [half for a, b in level for half in ((a, (a + b) // 2), ((a + b) // 2 + 1, b))]
        level = [(a, b) for a, b in halves if a < b]
    return np.array(path)


# name -> the path (T,) of a sequence
ORDERS: dict[str, Callable[[int, np.random.Generator], np.ndarray]] = {
    "left_to_right": lambda T, rng: np.arange(T),
    "random": lambda T, rng: rng.permutation(T),  # each of the T! paths with the same probability
    "fractal": lambda T, rng: fractal(T),
}
MASKED = "masked"  # masked diffusion: which places are hidden, and no order among them


def along(tokens: np.ndarray, path: np.ndarray, start: int, place: int = 0, first: int = 0) -> Read:
    """`tokens` (B, T) in the order of `path` (B, T), the places from `first`, a number or (B,), on scored.
    `start`: id of the start token; it stands at `place`, the model's block_size (0: T).

    Positions are (B, T, 2): the place of each, and of the next.
    """
    targets = np.take_along_axis(tokens, path, 1)
    read, places = np.roll(targets, 1, 1), np.roll(path, 1, 1)
    read[:, 0], places[:, 0] = start, place or tokens.shape[1]
    scored = path >= np.reshape(first, (-1, 1))
    return Read(*map(torch.from_numpy, (read, np.stack((places, path), 2), targets, scored)))


@dataclass(frozen=True)
class Order:
    """The order of each sequence at each step of a training.

    With a `curriculum` the share `share` of the sequences has at first that order, the others have `name`;
    it falls linearly to 0 at step `steps`. Source: sec. 3.3, where they begin from left to right. With
    "few_hidden", of masked diffusion, at most that share of the places is hidden at first; it rises to 1.
    """

    name: str = "left_to_right"
    curriculum: str = ""  # none
    share: float = 0.5
    steps: int = 1
    seed: int = 0

    def generators(self, step: int, rows: np.ndarray) -> list[np.random.Generator]:
        """A generator for each of the sequences that are number `rows` (B,) of a step's batch: a pure
        function of the seed, the step and that number."""
        return [np.random.default_rng((self.seed, 1, step, i)) for i in rows.tolist()]

    def paths(self, step: int, rows: np.ndarray, T: int, given: int = 0) -> np.ndarray:
        """Paths (B, T) of the sequences that are number `rows` (B,) of a step's batch. The first `given`
        places come first, from left to right; the order is that of the others."""
        share = self.share * max(0.0, 1 - step / self.steps)  # of the sequences, by the curriculum

        def path(rng: np.random.Generator) -> np.ndarray:
            by_curriculum = self.curriculum and rng.random() < share
            rest = ORDERS[self.curriculum if by_curriculum else self.name](T - given, rng)
            return np.concatenate((np.arange(given), given + rest))

        return np.stack([path(rng) for rng in self.generators(step, rows)])

    def hidden(self, step: int, rows: np.ndarray, batch: int, T: int) -> tuple[np.ndarray, np.ndarray]:
        """(k, weight): how many of T places are hidden in each of the sequences that are number `rows` (B,)
        of a step's `batch`, and the weight of each loss there.

        k is uniform from 1 to T, or to the curriculum's share of T, and spread evenly over the batch, which
        takes noise off the gradient. The mean over k of T / k times the sum of the losses is the NELBO of
        masked diffusion; under the curriculum every hidden place counts the same. Sources: Kingma et al.
        2021, arXiv 2107.00630, app. I.1; Ou et al. 2024, 2406.03736, eq. 14; Sahoo et al. 2024, 2406.07524.
        """
        even = self.curriculum and step < self.steps
        most = T if not even else max(1, round(T * (self.share + (1 - self.share) * step / self.steps)))
        first = np.random.default_rng((self.seed, 2, step)).integers(batch * most)
        k = 1 + (first + rows * most) % (batch * most) // batch
        return k, np.full(len(k), 2 * T / (most + 1)) if even else T / k


def hide_places(
    tokens: np.ndarray, hidden: np.ndarray, counted: np.ndarray, weights: np.ndarray, mask: int
) -> Read:
    """`tokens` (B, T) with the id `mask` where `hidden` (B, T); `weights` (B,) of the losses that count."""
    of_each = np.repeat(weights[:, None], tokens.shape[1], 1).astype(np.float32)
    read = np.where(hidden, mask, tokens)
    return Read(torch.from_numpy(read), None, *map(torch.from_numpy, (tokens, counted, of_each)))


def hide(tokens: np.ndarray, numbers: np.ndarray, first: np.ndarray, stop: int, mask: int) -> Read:
    """Windows (B, T) of which k of the F places `first` (B,), ..., stop - 1 are hidden and count, each with
    the weight F / k: the NELBO (`Order.hidden`). What stands after them is hidden, too, if `stop` < T.

    k is spread evenly over the windows by their `numbers` (B,), and which places they are depends on these
    alone.
    """
    free = stop - first
    count = 1 + np.floor((numbers * 0.618033988749895 + 0.5) % 1 * free).astype(int)
    counted = np.zeros(tokens.shape, bool)
    for row, number in enumerate(numbers.tolist()):
        places = np.random.default_rng(number).permutation(free[row])[: count[row]]
        counted[row, first[row] + places] = True
    hidden = counted.copy()
    hidden[:, stop:] = True
    return hide_places(tokens, hidden, counted, free / count, mask)


def plan(c: GPTConfig, ids: np.ndarray, order: str, given: int = 0) -> Plan:
    """How a text is scored in an order: windows from their start token along a path each, or with hidden
    places. A window's path and what it hides are a function of its number alone.

    Windows do not overlap, but for the last one, which is moved back to end with the text; there only the
    tokens count that no other window has. With `given` tokens they are the sequences of the text.
    """
    T = c.block_size if given else min(c.block_size, len(ids))
    starts = [*range(0, len(ids) - T + (given > 0), T)] + [len(ids) - T] * (not given)
    # number, start, first place that counts
    windows = [(n, start, given or max(0, n * T - start)) for n, start in enumerate(starts)]

    def read(part: list[tuple[int, int, int]]) -> Read:
        numbers, at, first = np.array(part).T
        tokens = np.stack([ids[s : s + T] for s in at]).astype(np.int64)
        if order == MASKED:
            return hide(tokens, numbers, first, T, c.vocab_size)
        path = Order(order).paths(0, numbers, T, given)
        return along(tokens, path, c.vocab_size, c.block_size, first)

    return Plan(windows, read)


# -----------------------------------------------------------------------------
# Any order


class OneMore(GPTConfig):
    """With an id beside the vocabulary, V: of the start token or the mask token. No head gives it a
    probability."""

    @property
    def known_ids(self) -> int:
        return self.vocab_size + 1


class DoubleEncoding(nn.Module):
    """Where a token stands and which place it is to predict, in half of the C numbers each.

    The start token stands at place `block_size`. Learned; or `sinusoidal` and fixed, as in the paper, with
    the root mean square that learned ones begin with. Source: sigma-GPT, sec. 2.2.
    """

    table: Tensor

    def __init__(self, block_size: int, n_embd: int, sinusoidal: bool = False):
        super().__init__()
        half = n_embd // 2
        self.sinusoidal = sinusoidal
        if sinusoidal:
            self.register_buffer("table", sinusoids(block_size + 1, half), persistent=False)
        else:
            self.own, self.next = nn.Embedding(block_size + 1, half), nn.Embedding(block_size, half)

    def forward(self, places: Tensor) -> Tensor:
        """(..., 2) of (place of the token, place that it predicts) -> (..., C)."""
        if self.sinusoidal:
            return self.table[places].flatten(-2)
        place, following = places.unbind(-1)
        return torch.cat((self.own(place), self.next(following)), -1)


def sinusoids(count: int, width: int, rms: float = 0.02) -> Tensor:
    """(count, width): sines and cosines of each place. Source: Vaswani et al. 2017, sec. 3.5."""
    rates = 10000 ** (-torch.arange(0, width, 2) / width)
    angles = torch.arange(count)[:, None] * rates
    return torch.cat((angles.sin(), angles.cos()), 1) * rms * math.sqrt(2)


class AnyOrder(GPT):
    """sigma-GPT: a token sees those that were given before it, wherever they stand, and predicts the place
    that it is told. A start token goes first.

    order             that it is trained in: random or fractal
    curriculum        the order that a share of the sequences has at first, such as left_to_right
    curriculum_share  that share, which falls linearly to 0 ...
    curriculum_steps  ... at this step; 0: at the end of the schedule
    sinusoidal        the two positions are sines and cosines; False: learned
    """

    before = 1
    kind = "any"

    def __init__(
        self,
        config: GPTConfig,
        order: str = "random",
        curriculum: str = "",
        curriculum_share: float = 0.5,
        curriculum_steps: int = 0,
        sinusoidal: bool = False,
    ):
        if order not in ORDERS or curriculum not in ("", *ORDERS):
            raise ValueError(f"order = {order!r}, curriculum = {curriculum!r}: use {', '.join(ORDERS)}")
        if config.n_embd % (4 if sinusoidal else 2) or config.block_size < 2:
            raise ValueError(
                f"n_embd = {config.n_embd}, block_size = {config.block_size}: two positions take half of "
                "n_embd each (sines and cosines a quarter), and a text of one token has no order"
            )
        self.fills, self.sinusoidal, self.forwards = order, sinusoidal, order != "fractal"
        self.paths_at = partial(Order, order, curriculum, curriculum_share)
        self.curriculum_steps = curriculum_steps
        super().__init__(OneMore(**asdict(config)))

    def new_positions(self) -> nn.Module:
        return DoubleEncoding(self.config.block_size, self.config.n_embd, self.sinusoidal)

    @property
    def context(self) -> int:
        return self.config.block_size - 1  # after the last token of a block no place is left to predict

    def arrange(self, windows: Tensor, step: Step, given: int = 0) -> Read:
        tokens = windows[:, :-1].numpy()
        order = self.paths_at(self.curriculum_steps or step.end, step.seed)
        path = order.paths(step.number, step.rows.numpy(), tokens.shape[1], given)
        return along(tokens, path, self.config.vocab_size, first=given)

    def plans(self, ids: np.ndarray, given: int = 0) -> dict[str, Plan]:
        names = dict.fromkeys((self.fills, "left_to_right", "random"))
        return {name: plan(self.config, ids, name, given) for name in names}

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor | None = None,
        cache: Cache | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """As GPT's. positions: (B, T, 2), the place of each token and that which it is to predict. None: the
        text from left to right, after what `cache` holds."""
        if positions is not None:
            return super().forward(tokens, positions, cache, mask)
        start = cache.length if cache is not None else 0
        self.check_room(tokens.shape[1], start, cache)
        if start == 0:
            tokens = F.pad(tokens, (1, 0), value=self.config.vocab_size)
        following = torch.arange(start, start + tokens.shape[1], device=tokens.device)
        place = (following - 1) % (self.config.block_size + 1)  # the start token stands at the last of these
        hidden = super().forward(tokens, torch.stack((place, following), -1)[None], cache, mask)
        return hidden[:, int(start == 0) :]  # none of the start token is asked for

    def decode(self, tokens: Tensor, cache: Cache, position: Tensor, places: Tensor | None = None) -> Tensor:
        return super().decode(tokens, cache, position, torch.stack((position - 1, position), -1)[None])


class Masked(GPT):
    """Masked diffusion: each token sees all, and where a mask token stands predicts that place.

    curriculum  "few_hidden": at most `curriculum_share` of the places is hidden at first, which rises
                linearly to all at `curriculum_steps` (0: the end of the schedule)
    """

    forwards = False
    kind = MASKED
    fills = "random"  # the order in which gaps are filled in

    def __init__(
        self,
        config: GPTConfig,
        curriculum: str = "",
        curriculum_share: float = 0.5,
        curriculum_steps: int = 0,
    ):
        if curriculum not in ("", "few_hidden"):
            raise ValueError(f"curriculum = {curriculum!r}: use few_hidden")
        super().__init__(OneMore(**asdict(config)))
        for part in self.modules():
            if isinstance(part, Attention):
                part.causal = False
        self.hidden_at = partial(Order, MASKED, curriculum, curriculum_share)
        self.curriculum_steps = curriculum_steps

    def arrange(self, windows: Tensor, step: Step, given: int = 0) -> Read:
        tokens = windows[:, :-1].numpy()
        order, T = self.hidden_at(self.curriculum_steps or step.end, step.seed), tokens.shape[1] - given
        counts, weights = order.hidden(step.number, step.rows.numpy(), step.batch, T)
        rngs = order.generators(step.number, step.rows.numpy())
        hidden = np.pad([rng.permutation(T) < k for rng, k in zip(rngs, counts)], ((0, 0), (given, 0)))
        return hide_places(tokens, hidden, hidden, weights, self.config.vocab_size)

    def plans(self, ids: np.ndarray, given: int = 0) -> dict[str, Plan]:
        return {MASKED: plan(self.config, ids, MASKED, given)}


TRUNKS = {"any_order": AnyOrder, "masked": Masked}
