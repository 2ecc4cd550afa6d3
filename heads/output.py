"""A head joined to its projection: the loss, and the predictive distribution."""

import math
from collections.abc import Iterator
from functools import reduce
from typing import Any

import torch
import torch.nn as nn
from torch import Tensor

from .base import Head, Targets, check_positive
from .chunked import block_rows, chunk_rows, chunked_loss
from .projection import BayesianProjection, Projection, Weights, amplified, check_learned, logits_of, unit


class OutputHead(nn.Module):
    """A head and its projection: the loss of hidden states, and their predictive distribution.

    The logits are z = g h W^T + b with a `gain` g > 0; for heads on cosines, g sqrt(C) cos(h, w) + b. A
    learned gain starts there and is kept as its logarithm. The gain is beside the head, so that any head can
    be compared at any gain: for softmax it is one over the temperature.
    """

    components = 1  # distributions that p is a mixture of

    def __init__(self, head: Head, projection: Projection, gain: float = 1.0, learn_gain: bool = False):
        super().__init__()
        check_positive(gain=gain)
        if learn_gain:
            check_learned(head)
        self.head, self.projection, self.fixed_gain = head, projection, gain
        self.log_gain = nn.Parameter(torch.tensor(math.log(gain))) if learn_gain else None

    @property
    def gain(self) -> Tensor | float:
        """g, as it is now."""
        return self.fixed_gain if self.log_gain is None else self.log_gain.exp()

    def loss(
        self, hidden: Tensor, targets: Targets, generator: torch.Generator | None = None
    ) -> tuple[Tensor, int]:
        """(sum of the losses in nats, number of positions that have one) over hidden (..., C).

        A Bayesian projection draws its weights once, from `generator`. On a GPU, to look for positions
        without a loss would mean to wait for it: `targets` are to be `kept()` before they go there.
        """
        hidden = hidden.reshape(-1, hidden.shape[-1])
        if targets.ids.device.type == "cpu":
            targets = targets.kept()
        if targets.rows is not None:
            hidden = hidden[targets.rows]
        weights = self.projection.draw(generator)
        return self._total(hidden, weights, targets), len(hidden)

    def _total(self, hidden: Tensor, weights: Weights, targets: Targets) -> Tensor:
        return chunked_loss(hidden, weights, self.head, targets, gain=self.gain)

    def compile(self, **options: Any) -> None:
        """Compiles the head's loss with torch.compile(**options), for training on a GPU: forward and backward
        in a few kernels over (n, V)."""
        vars(self.head)["loss"] = torch.compile(self.head.loss, **options)  # of this head, not of its class

    @torch.no_grad()
    def draws(self, samples: int, seed: int, dtype: torch.dtype = torch.float32) -> list[Weights]:
        """The weights that `log_probs` averages over, of length 1 for cosines: `samples` draws, a pure
        function of the seed; one where weights are points."""
        if not isinstance(self.projection, BayesianProjection):
            samples = 1
        generator = torch.Generator(self.projection.weight.device).manual_seed(seed)
        return [self.scored(self.projection.draw(generator), dtype) for _ in range(samples)]

    def scored(self, drawn: Weights, dtype: torch.dtype = torch.float32) -> Weights:
        """A draw as `log_probs` takes it: of length 1 for cosines."""
        return Weights((unit(drawn.weight) if self.head.cosine else drawn.weight).to(dtype), drawn.bias)

    def log_probs(self, hidden: Tensor, draws: list[Weights]) -> Tensor:
        """log p (N, V), float32, of the predictive distribution p = mean over draws of p(. | W):
        log-mean-exp, never the mean NLL."""
        return self._mean(self._products(hidden, draws), draws)

    def log_prob_blocks(self, hidden: Tensor, draws: list[Weights]) -> Iterator[tuple[slice, Tensor]]:
        """`log_probs` of many rows: (rows, log p of these rows), a few rows at a time, each to be used before
        the next is asked for."""
        V, device = self.head.vocab_size, hidden.device.type
        chunk, block = max(1, chunk_rows(V, device) // len(draws)), block_rows(V, device)
        for start in range(0, len(hidden), chunk):
            h = hidden[start : start + chunk]
            products = self._products(h, draws)
            for i in range(0, len(h), block):
                yield (
                    slice(start + i, start + min(i + block, len(h))),
                    self._mean([z[i : i + block] for z in products], draws),
                )

    def log_p_of(self, hidden: Tensor, draws: list[Weights], token: Tensor) -> Tensor:
        """log p (N,), float32, of one token (N,) after each row of `hidden` (N, C)."""
        blocks, token = self.log_prob_blocks(hidden, draws), token.to(hidden.device)[:, None]
        return torch.cat([log_p.gather(1, token[rows])[:, 0] for rows, log_p in blocks])

    def _products(self, hidden: Tensor, draws: list[Weights]) -> list[Tensor]:
        hidden = amplified(hidden, self.head, self.gain)
        return [hidden.to(d.weight.dtype) @ d.weight.t() for d in draws]

    def _mean(self, products: list[Tensor], draws: list[Weights]) -> Tensor:
        V = self.head.vocab_size
        each = (self.head.log_probs(logits_of(z, weights, V)) for z, weights in zip(products, draws))
        with torch.autocast(products[0].device.type, enabled=False):  # lowers the projection only
            total = reduce(torch.logaddexp, each)
        return total - math.log(len(draws)) if len(draws) > 1 else total
