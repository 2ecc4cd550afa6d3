"""Trunks of any order (sigma-GPT) and of masked diffusion. task.py trains them.

Source: Pannatier, Courdier, Fleuret 2024, arXiv 2404.09562 (sigma-GPT).
"""

import math
from dataclasses import asdict

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from model import GPT, Attention, Cache, GPTConfig

ORDERS = ("left_to_right", "random", "fractal")  # of labs/sequences/paths.py
MASKED = "masked"  # masked diffusion: which places are hidden, and no order among them


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

    prefix_tokens = 1  # which have a place in the cache
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
        self.curriculum = curriculum, curriculum_share, curriculum_steps
        super().__init__(OneMore(**asdict(config)))

    def new_positions(self) -> nn.Module:
        return DoubleEncoding(self.config.block_size, self.config.n_embd, self.sinusoidal)

    @property
    def context(self) -> int:
        return self.config.block_size - 1  # after the last token of a block no place is left to predict

    def new_cache(self, batch: int, dtype: torch.dtype, size: int) -> Cache:
        return super().new_cache(batch, dtype, size + self.prefix_tokens)

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
        if start == 0:
            tokens = F.pad(tokens, (1, 0), value=self.config.vocab_size)
        self.check_room(start + tokens.shape[1], cache)
        following = torch.arange(start, start + tokens.shape[1], device=tokens.device)
        place = (following - 1) % (self.config.block_size + 1)  # the start token stands at the last of these
        hidden = super().forward(tokens, torch.stack((place, following), -1)[None], cache, mask)
        return hidden[:, int(start == 0) :]  # none of the start token is asked for

    def decode(self, tokens: Tensor, cache: Cache, position: Tensor) -> Tensor:
        places = torch.stack((position - 1, position), -1)[None]
        return self._blocks(self.wte(tokens), places, cache, position, None)


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
        self.curriculum = curriculum, curriculum_share, curriculum_steps


TRUNKS = {"any_order": AnyOrder, "masked": Masked}
