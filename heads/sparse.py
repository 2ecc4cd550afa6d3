"""Heads with exact zeros: most tokens have probability 0, and log_probs is -inf there."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Head, Targets, at


class SparseSoftmax(Head):
    """Softmax over the top alone: the `top_k` largest logits, or the fewest with `top_p` of softmax's mass.

        L = log sum_{j in top} e^(z_j) - z_t, whether t is in the top or not

    Only the top and t get a gradient, so this is for fine-tuning (`init_from`) more than for a fresh start.
    Scored and sampled as trained: a token below the top has p = 0. Ties with the last of the top are in it.
    Source: Su's survey of softmax and its alternatives, 2024 (spaces.ac.cn/archives/10145), the table on
    sparse softmax; Sun et al. 2021, arXiv 2112.12433.
    """

    sparse = True

    def __init__(self, vocab_size: int, top_k: int = 0, top_p: float = 0.0):
        super().__init__(vocab_size)
        if top_k == top_p == 0:
            top_k = 50
        by_count, by_mass = top_k >= 1 and top_p == 0, top_k == 0 and 0 < top_p < 1
        if not (by_count or by_mass):
            raise ValueError(
                f"top_k = {top_k}, top_p = {top_p}: give a top_k of at least 1 or a top_p between 0 and 1, "
                "not both (neither: top_k = 50)"
            )
        self.top_k, self.top_p = top_k, top_p

    @torch.no_grad()
    def last(self, z: Tensor) -> Tensor:
        """The smallest logit of the top (N, 1); for top_p by bisection, in half the time of sorting."""
        if self.top_k:
            return z.topk(min(self.top_k, self.vocab_size)).values[:, -1:]
        p, low, high = z.softmax(1), z.amin(1, keepdim=True), z.amax(1, keepdim=True)
        for _ in range(30):
            middle = (low + high) / 2
            enough = (p * (z >= middle)).sum(1, keepdim=True) >= self.top_p
            low, high = torch.where(enough, middle, low), torch.where(enough, high, middle)
        return low

    def top(self, z: Tensor) -> Tensor:
        """The logits with -inf outside the top."""
        return z.masked_fill(z < self.last(z), -math.inf)

    def loss(self, logits: Tensor, targets: Targets) -> Tensor:
        return self.top(logits).logsumexp(1) - at(logits, targets.token)

    def log_probs(self, logits: Tensor) -> Tensor:
        return F.log_softmax(self.top(logits), dim=-1)


def threshold(x: Tensor, q: float) -> Tensor:
    """tau (N, 1) with sum_i max(x_i - tau, 0)^q = 1, for q >= 1.

    tau is at least max_i x_i - 1, so an x_i below that does not count. Few trained logits are above it.
    """
    low = x.amax(1, keepdim=True) - 1
    near = x > low
    count = near.sum(1)
    most = int(count.max())
    if 4 * most > x.shape[1]:
        return newton(x, q, low)
    # (N, most): those of each row, moved to the left
    row = near.nonzero()[:, 0]
    first = count.cumsum(0) - count
    column = torch.arange(len(row), device=x.device) - first[row]
    few = x.new_full((len(x), most), -math.inf)
    few[row, column] = x[near]
    return newton(few, q, low)


def newton(x: Tensor, q: float, tau: Tensor) -> Tensor:
    """The root tau (N, 1) of |max(x - tau, 0)|_q = 1, from a `tau` below it.

    The q-norm is convex and falls as tau grows, so Newton's method never oversteps the root.
    """
    for _ in range(100):
        r = (x - tau).relu()
        below = r.sign() if q == 1 else r.pow(q - 1)  # 0^0 is to be 0
        norm = (r * below).sum(1, keepdim=True).pow(1 / q)
        nearer = tau + (norm - 1) * norm.pow(q - 1) / below.sum(1, keepdim=True)
        if not (nearer > tau).any():
            break
        tau = torch.maximum(tau, nearer)
    return tau


def entmax(z: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """alpha-entmax p (N, V) and p^(alpha - 1), both 0 outside the support."""
    x = (alpha - 1) * (z - z.amax(1, keepdim=True))
    root = (x - threshold(x, 1 / (alpha - 1))).relu()
    p = root.pow(1 / (alpha - 1))
    return p / p.sum(1, keepdim=True), root


def entropy(p: Tensor, root: Tensor, alpha: float) -> Tensor:
    """Tsallis's alpha-entropy H(p) (N,), with `root` = p^(alpha - 1)."""
    return (1 - (p * root).sum(1)) / (alpha * (alpha - 1))


class Entmax(Head):
    """alpha-entmax: p_i = max((alpha - 1) z_i - tau, 0)^(1 / (alpha - 1)), with tau such that sum_i p_i = 1.

    alpha = 2 is sparsemax; towards 1 it becomes softmax.
    L is its Fenchel-Young loss, whose gradient is p - onehot(t):

        L = p z + H(p) - z_t,  H(p) = (1 - sum_i p_i^alpha) / (alpha (alpha - 1))

    L is exactly 0 where z_t leads by 1 / (alpha - 1), and finite where p_t = 0. So logits of that size make a
    confident prediction over any V, and the head needs no bias and no scale.
    Source: Peters et al. 2019, arXiv 1905.05702; the loss: Blondel et al. 2020, arXiv 1901.02324.
    """

    sparse = True

    def __init__(self, vocab_size: int, alpha: float = 1.25):
        super().__init__(vocab_size)
        if not 1 < alpha <= 2:
            raise ValueError(
                f"alpha = {alpha}: entmax takes 1 < alpha <= 2, from near softmax (at 1 use that head) "
                "to sparsemax (2)"
            )
        self.alpha = alpha

    def loss(self, logits: Tensor, targets: Targets) -> Tensor:
        z = logits - logits.detach().amax(1, keepdim=True)  # else L is a difference of large numbers
        with torch.no_grad():  # p maximises p z + H(p), so a change of p does not change L
            p, root = entmax(z, self.alpha)
        return entropy(p, root, self.alpha) + (p * z).sum(1) - at(z, targets.token)

    def log_probs(self, logits: Tensor) -> Tensor:
        return entmax(logits, self.alpha)[0].log()


class Sparsemax(Entmax):
    """p = argmin over distributions of |p - z|^2: entmax with alpha = 2.

    Source: Martins & Astudillo 2016, arXiv 1602.02068.
    """

    def __init__(self, vocab_size: int):
        super().__init__(vocab_size, 2.0)


class Entmax15(Entmax):
    """Entmax with alpha = 1.5, between softmax and sparsemax.

    Source: Peters et al. 2019, arXiv 1905.05702, sec. 3.
    """

    def __init__(self, vocab_size: int):
        super().__init__(vocab_size, 1.5)
