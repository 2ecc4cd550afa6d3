"""Heads with exact zeros: most tokens have probability 0, and log_probs is -inf there."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Gradient, Head, Targets, at, check_range


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
            raise ValueError(f"top_k = {top_k}, top_p = {top_p}: give one, from 1 or between 0 and 1")
        self.top_k, self.top_p = top_k, top_p

    @torch.no_grad()
    def last(self, z: Tensor) -> Tensor:
        """The smallest logit of the top (N, 1); for top_p by bisection, in half the time of sorting."""
        if self.top_k:
            return z.topk(min(self.top_k, self.vocab_size)).values[:, -1:]
        p, high = z.softmax(1), z.amax(1, keepdim=True)
        low = torch.where(z == -math.inf, high, z).amin(1, keepdim=True)
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


def newton(x: Tensor, q: float, tau: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The root tau (N, 1) of sum_i max(x_i - tau, 0)^q = 1, from a `tau` below it; and, at the root, max(x -
    tau, 0) (N, V) and its power q.

    The q-norm is convex and falls as tau grows, so Newton's method never oversteps the root.
    """
    r = torch.empty_like(x)
    for _ in range(100):
        torch.sub(x, tau, out=r).relu_()
        power = r.sign() if q == 1 else r.pow(q - 1)  # 0^0 is to be 0
        slope = power.sum(1, keepdim=True)
        power *= r
        norm = power.sum(1, keepdim=True).pow(1 / q)
        nearer = tau + (norm - 1) * norm.pow(q - 1) / slope
        if not (nearer > tau).any():
            break
        tau = torch.maximum(tau, nearer)
    return tau, r, power


FOLD = 16  # columns in a group


def entmax(z: Tensor, alpha: float, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """alpha-entmax p (N, V), in `out` if given, which may be z itself; and max_p p z + H(p) (N,), with
    Tsallis's alpha-entropy H(p) = (1 - sum_i p_i^alpha) / (alpha (alpha - 1)).

    The columns are cut into groups. The tau of the groups' largest logits alone is at most the tau of all, so
    a group whose largest is below it has p = 0. In trained logits few groups are above.
    """
    (N, V), q, start = z.shape, 1 / (alpha - 1), -z.new_ones(len(z), 1)
    width = V // FOLD
    if width >= FOLD:
        groups = z[:, : FOLD * width].unflatten(1, (FOLD, width))  # group i has every width-th column from i
        tops = torch.cat((groups.amax(1), z[:, FOLD * width :]), 1)  # a column that is left over is its own
        top = tops.amax(1, keepdim=True)
        tops = (tops - top) * (alpha - 1)
        start, *_ = newton(tops, q, start)
        tops = tops[:, :width]
        most = int((tops > start).sum(1).max())
        if 4 * most < width and top.isfinite().all():  # else a nan might be in a group that is left out
            first = tops.topk(most, sorted=False).indices
            columns = (first[:, None] + width * torch.arange(FOLD, device=z.device)[:, None]).flatten(1)
            rest = torch.arange(FOLD * width, V, device=z.device).expand(N, -1)
            columns = torch.cat((columns, rest), 1)
            few, value = entmax(z.gather(1, columns), alpha)
            p = torch.zeros_like(z) if out is None else out.zero_()
            return p.scatter_(1, columns, few), value
    top = z.amax(1, keepdim=True)
    x = torch.sub(z, top, out=out).mul_(alpha - 1)
    tau, root, p = newton(x, q, start)
    total = p.sum(1, keepdim=True)
    p = torch.mul(p, total.reciprocal(), out=out)
    mean = root.mul_(p).sum(1)  # of p^(alpha - 1)
    entropy = (1 - mean) / (alpha * (alpha - 1))
    return p, entropy + (mean + tau.squeeze(1)) / (alpha - 1) + top.squeeze(1)


class _LogEntmax(torch.autograd.Function):
    """log p (N, V). With s_i = p_i^(2 - alpha) where p_i > 0, else 0, the Jacobian of p is diag(s) - s s^T /
    sum_i s_i. Source: Peters et al. 2019, arXiv 1905.05702, prop. 2."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, alpha: float) -> Tensor:
        p, _ = entmax(z, alpha)
        ctx.save_for_backward(p)
        ctx.alpha = alpha
        return p.log()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (p,) = ctx.saved_tensors
        s = p.pow(2 - ctx.alpha).masked_fill_(p == 0, 0)
        through_p = s * (grad / p).masked_fill_(p == 0, 0)
        return through_p - s * (through_p.sum(1, keepdim=True) / s.sum(1, keepdim=True)), None


class Entmax(Head):
    """alpha-entmax: p_i = max((alpha - 1) z_i - tau, 0)^(1 / (alpha - 1)), with tau such that sum_i p_i = 1.

    alpha = 2 is sparsemax; towards 1 it becomes softmax.
    L is its Fenchel-Young loss, whose gradient is p - onehot(t):

        L = p z + H(p) - z_t,  H(p) = (1 - sum_i p_i^alpha) / (alpha (alpha - 1))

    L is exactly 0 where z_t leads by 1 / (alpha - 1), and finite where p_t = 0. So logits of that size make a
    confident prediction over any V, and the head needs no bias and no scale.
    Source: Peters et al. 2019, arXiv 1905.05702; the loss: Blondel et al. 2020, arXiv 1901.02324.
    """

    sparse, compiles = True, False

    def __init__(self, vocab_size: int, alpha: float = 1.25):
        super().__init__(vocab_size)
        check_range("(1, 2]", alpha=alpha)
        self.alpha = alpha

    def gradient(self, logits: Tensor, targets: Targets) -> Gradient:
        z_t = at(logits, targets.token)
        p, value = entmax(logits, self.alpha, out=logits)
        return value - z_t, p, (at(p, targets.token) - 1)[:, None]

    def log_probs(self, logits: Tensor) -> Tensor:
        return _LogEntmax.apply(logits, self.alpha)


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
