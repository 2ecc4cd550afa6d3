"""A head joined to its projection: the chunked loss, and the predictive distribution."""

import math
from typing import Iterator

import torch
import torch.nn as nn
from torch import Tensor

from .base import Head, Targets
from .projection import BayesianProjection, Projection, Weights, logits_of, unit


class _ChunkedLoss(torch.autograd.Function):
    """sum_n loss_n, the gradient taken in the same pass. Matrix products run on chunks of rows, whose logits become their own gradient
    in place; between the products the head's arithmetic runs on blocks of rows, few enough to stay in a CPU's caches."""

    @staticmethod
    def forward(ctx, hidden, weight, bias, head, targets, chunk, block, dtype, *params):
        # dtype: what autocast uses for matrix products; nothing else is to be lowered, the head's own arithmetic least of all
        with torch.autocast(hidden.device.type, enabled=False):
            return _ChunkedLoss.run(ctx, hidden, weight, bias, head, targets, chunk, block, dtype, *params)

    @staticmethod
    def run(ctx, hidden, weight, bias, head, targets, chunk, block, dtype, *params):
        needs, V = ctx.needs_input_grad, head.vocab_size
        make = [torch.empty_like, torch.empty_like] + [torch.zeros_like] * (1 + len(params))  # the first two are written before they are added to
        ctx.grads = [new(p) if need else None for new, p, need in zip(make, (hidden, weight, bias, *params), needs[:3] + needs[8:])]
        d_hidden, d_weight, d_bias, *d_params = ctx.grads
        wanted = [p for p, d in zip(params, d_params) if d is not None]
        h_all, w = hidden.to(dtype), weight.to(dtype)
        work = torch.promote_types(hidden.dtype, torch.float32)  # of the head's own arithmetic: float32, or float64 in the tests
        total = torch.zeros((), dtype=work, device=hidden.device)
        buffer = h_all.new_empty(min(chunk, len(h_all)), len(w))
        for start in range(0, len(h_all), chunk):
            h = h_all[start:start + chunk]
            z = torch.mm(h, w.t(), out=buffer[:len(h)])
            for i in range(0, len(h), block):
                logits = z[i:i + block, :V].to(work, copy=True)
                if bias is not None:
                    logits += bias
                rows = targets.rows(start + i, start + i + len(logits))
                if not any(needs):
                    total += head.loss(logits, rows).sum()
                    continue
                with torch.enable_grad():
                    loss = head.loss(logits.requires_grad_(), rows).sum()
                    dz, *dp = torch.autograd.grad(loss, (logits, *wanted), allow_unused=True)
                total += loss.detach()
                z[i:i + block, :V] = dz
                if d_bias is not None:
                    d_bias += dz.sum(0)
                for d, g in zip((d for d in d_params if d is not None), dp):
                    if g is not None:
                        d += g
            z[:, V:] = 0  # the padding has no gradient
            if d_hidden is not None:
                d_hidden[start:start + chunk] = z @ w
            if d_weight is not None:
                _add_product(d_weight, z, h, new=start == 0)
        return total

    @staticmethod
    def backward(ctx, grad):
        if ctx.grads is None:
            raise RuntimeError("chunked_loss keeps its gradients for one backward only")
        # scaled in place: a copy would be another (V, C)
        grads, ctx.grads = [g if g is None else g.mul_(grad) for g in ctx.grads], None
        d_hidden, d_weight, d_bias, *d_params = grads
        return d_hidden, d_weight, d_bias, None, None, None, None, None, *d_params


def _add_product(total: Tensor, z: Tensor, h: Tensor, new: bool) -> None:
    """total (V, C) += z^T h, or = if `new`; summed in total's precision whatever that of z (n, V) and h (n, C)."""
    if z.dtype == total.dtype:
        torch.addmm(total, z.t(), h, beta=0 if new else 1, out=total)
        return
    step = 2048 if z.device.type == "cpu" else z.shape[1]  # on a CPU the product is to be added while it is in the caches
    for v in range(0, z.shape[1], step):
        part = z[:, v:v + step].t() @ h
        total[v:v + step].copy_(part) if new else total[v:v + step].add_(part)


def chunk_rows(vocab_size: int, device: str) -> int:
    """Rows of logits for one matrix product: on a GPU about half a gigabyte; never too few for it to be efficient."""
    return max(256, (2**22 if device == "cpu" else 2**27) // vocab_size)


def block_rows(vocab_size: int, device: str) -> int:
    """Rows of logits for a head's arithmetic: on a CPU a megabyte or two, which its caches hold; on a GPU as many as there are."""
    return 2 * max(1, 3 * 2**16 // vocab_size) if device == "cpu" else chunk_rows(vocab_size, device)


def chunked_loss(hidden: Tensor, weights: Weights, head: Head, targets: Targets, chunk: int = 0, block: int = 0) -> Tensor:
    """Sum over rows of head.loss(hidden W^T + b, targets), without the (N, V) logits: a scalar in float32.

    hidden (N, C); targets of N rows; chunk: rows of a matrix product, block: rows of the head's arithmetic (0: see `chunk_rows`, `block_rows`).
    Value and gradients (of hidden, weight, bias and the head's parameters) equal the unchunked ones; higher derivatives do not exist. Under
    autocast the matrix products run in its dtype and everything else in float32. As Liger's fused linear cross-entropy (Hsu et al. 2024,
    arXiv 2410.10989), for any row-wise loss.
    """
    if len(targets.ids) != len(hidden):
        raise ValueError(f"{len(targets.ids)} rows of targets for {len(hidden)} rows of hidden states")
    device = hidden.device.type
    chunk, block = chunk or chunk_rows(head.vocab_size, device), block or block_rows(head.vocab_size, device)
    if head.cosine:
        hidden, weights = unit(hidden), weights._replace(weight=unit(weights.weight))
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    return _ChunkedLoss.apply(hidden, weights.weight, weights.bias, head, targets, chunk, block, dtype, *head.parameters())


class OutputHead(nn.Module):
    """A head and its projection: the loss of hidden states, and their predictive distribution."""

    def __init__(self, head: Head, projection: Projection):
        super().__init__()
        self.head, self.projection = head, projection

    def loss(self, hidden: Tensor, targets: Targets, generator: torch.Generator | None = None) -> tuple[Tensor, int]:
        """(sum of the losses in nats, count) over hidden (..., C). A Bayesian projection draws its weights once, from `generator`."""
        hidden = hidden.reshape(-1, hidden.shape[-1])
        return chunked_loss(hidden, self.projection.draw(generator), self.head, targets), len(hidden)

    def compile(self, **options) -> None:
        """Compiles the head's loss with torch.compile(**options), for training on a GPU: forward and backward in a few kernels over (n, V)."""
        self.head.loss = torch.compile(self.head.loss, **options)

    @torch.no_grad()
    def draws(self, samples: int, seed: int, dtype: torch.dtype = torch.float32) -> list[Weights]:
        """The weights that `log_probs` averages over, of length 1 for cosines: `samples` draws, a pure function of the seed; one where weights are points."""
        if not isinstance(self.projection, BayesianProjection):
            samples = 1
        generator = torch.Generator(self.projection.weight.device).manual_seed(seed)
        drawn = (self.projection.draw(generator) for _ in range(samples))
        return [Weights((unit(d.weight) if self.head.cosine else d.weight).to(dtype), d.bias) for d in drawn]

    def log_probs(self, hidden: Tensor, draws: list[Weights]) -> Tensor:
        """log p (N, V), float32, of the predictive distribution p = mean over draws of p(. | W): log-mean-exp, never the mean NLL."""
        return self._mean(self._products(hidden, draws), draws)

    def log_prob_blocks(self, hidden: Tensor, draws: list[Weights]) -> Iterator[tuple[slice, Tensor]]:
        """`log_probs` of many rows: (rows, log p of these rows), a few rows at a time, each to be used before the next is asked for."""
        V, device = self.head.vocab_size, hidden.device.type
        chunk, block = max(1, chunk_rows(V, device) // len(draws)), block_rows(V, device)
        for start in range(0, len(hidden), chunk):
            h = hidden[start:start + chunk]
            products = self._products(h, draws)
            for i in range(0, len(h), block):
                yield slice(start + i, start + min(i + block, len(h))), self._mean([z[i:i + block] for z in products], draws)

    def _products(self, hidden: Tensor, draws: list[Weights]) -> list[Tensor]:
        if self.head.cosine:
            hidden = unit(hidden)
        return [hidden.to(d.weight.dtype) @ d.weight.t() for d in draws]

    def _mean(self, products: list[Tensor], draws: list[Weights]) -> Tensor:
        total = None
        with torch.autocast(products[0].device.type, enabled=False):  # lowers the projection only
            for z, weights in zip(products, draws):
                lp = self.head.log_probs(logits_of(z, weights, self.head.vocab_size))
                total = lp if total is None else torch.logaddexp(total, lp)
        return total - math.log(len(draws)) if len(draws) > 1 else total
