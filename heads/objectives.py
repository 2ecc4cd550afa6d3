"""Softmax trained with other losses than -log p_t. Scoring and sampling are softmax's."""

import math

import numpy as np
import torch
from torch import Tensor

from .base import Head, Targets, at, check_not_negative, check_positive, cross_entropy, cross_entropy_parts
from .softmax import Softmax


def finite(z: Tensor) -> Tensor:
    """z with 0 for -inf, where p is 0: their product is to be 0."""
    return z.masked_fill(z == -math.inf, 0)


class ConfidencePenalty(Softmax):
    """L = -log p_t - beta H(p): confident distributions pay.

    Source: Pereyra et al. 2017, arXiv 1701.06548, sec. 3.1.
    """

    def __init__(self, vocab_size: int, beta: float = 0.1):
        super().__init__(vocab_size)
        check_not_negative(beta=beta)
        self.beta = beta

    def loss(self, logits: Tensor, targets: Targets) -> Tensor:
        ce, z_t = cross_entropy(logits, targets.token), at(logits, targets.token)
        entropy = ce + z_t - (torch.softmax(logits, 1) * finite(logits)).sum(1)  # log-sum-exp - E_p[z]
        return ce - self.beta * entropy


class ZLoss(Softmax):
    """L = -log p_t + alpha log(Z)^2 with Z = sum_v e^z_v: softmax whose normaliser is drawn to 1.

    At the minimum Z = 1, so p is the data's distribution as without it.
    Source: Chowdhery et al. 2022 (PaLM), arXiv 2204.02311, sec. 5.
    """

    def __init__(self, vocab_size: int, alpha: float = 1e-4):
        super().__init__(vocab_size)
        check_not_negative(alpha=alpha)
        self.alpha = alpha

    def loss(self, logits: Tensor, targets: Targets) -> Tensor:
        ce = cross_entropy(logits, targets.token)
        log_z = ce + at(logits, targets.token)
        return ce + self.alpha * log_z.square()


class SoftTargets(Softmax):
    """L = -sum_j q_j log p_j with sparse labels q = y / sum_j y_j: cross-entropy to a teacher's soft labels.

    It has the labels of the multi-label `Sigmoid` without its sigmoid. With the true token alone it is
    softmax. A position whose labels are all 0 has no loss.
    Source: Hinton et al. 2015, arXiv 1503.02531, eq. 2, on sparse labels.
    """

    multi_label = True

    def loss(self, logits: Tensor, targets: Targets) -> Tensor:
        y = targets.values.to(logits.dtype)
        q = y / y.sum(1, keepdim=True).clamp(min=torch.finfo(y.dtype).tiny)
        log_z = cross_entropy(logits, targets.token) + at(logits, targets.token)
        z = logits.gather(1, targets.ids.clamp(min=0)).masked_fill(q == 0, 0)  # of the padding, too
        return (q * (log_z[:, None] - z)).sum(1)

    def gradient(self, logits: Tensor, targets: Targets) -> tuple[Tensor, Tensor, Tensor]:
        """dL/dz_i = p_i sum_j q_j - q_i, where sum_j q_j is 1, or 0 where all labels are."""
        ids, y = targets.ids.clamp(min=0), targets.values.to(logits.dtype)
        q = y / y.sum(1, keepdim=True).clamp(min=torch.finfo(y.dtype).tiny)
        z, z_t = logits.gather(1, ids).masked_fill(q == 0, 0), at(logits, targets.token)
        share = q.sum(1, keepdim=True)
        ce, p, at_token = cross_entropy_parts(logits, targets.token, overwrite=True)
        p *= share
        at_ids = p.gather(1, ids) - q
        at_ids[:, :1] = at_token * share + (share - q[:, :1])
        return (q * ((ce + z_t)[:, None] - z)).sum(1), p, at_ids


def next_places(tokens: np.ndarray) -> np.ndarray:
    """For each place of `tokens` (B, T) the next place in its row with the same token (B, T); T if there is
    none."""
    T = tokens.shape[1]
    places = tokens.argsort(axis=1, kind="stable")  # those of equal tokens are neighbours, in ascending order
    ordered = np.take_along_axis(tokens, places, 1)
    after = np.full(tokens.shape, T)
    after[:, :-1] = np.where(ordered[:, :-1] == ordered[:, 1:], places[:, 1:], T)
    following = np.empty_like(after)
    np.put_along_axis(following, places, after, 1)
    return following


class Unlikelihood(Softmax):
    """L = -log p_t - alpha sum_{c in C} log(1 - p_c), with C the set of the context's tokens without t.

    The context is the last `window` tokens; 0 means all of the training window up to there, as in the paper.
    The tokens of C come as labels of value -1. There are 1 + window ids a position, so a batch of 12 x 512
    takes 19 MB with window = 0. As in the authors' code, 1 - p_c is at least 1e-5.
    Source: Welleck et al. 2019, arXiv 1908.04319, eq. 4 and 5.
    """

    def __init__(self, vocab_size: int, alpha: float = 1.0, window: int = 0):
        super().__init__(vocab_size)
        check_not_negative(alpha=alpha)
        if window < 0:
            raise ValueError(f"window = {window}: must be a number of tokens, or 0 for the whole context")
        self.alpha, self.window = alpha, window

    def targets(self, x: Tensor, y: Tensor) -> Targets:
        # in numpy: train.py's loader calls this in a thread, where torch would start a second team of threads
        tokens = x.cpu().numpy().astype(np.int32)  # (B, T)
        following = y.cpu().numpy().astype(np.int32)[:, :, None]  # (B, T, 1)
        B, T = tokens.shape
        position = np.arange(T)[:, None]
        at = position - np.arange(min(self.window or T, T))  # (T, W): position i looks at i, i - 1, ...
        # each token of the context once: where it is nearest, that is, does not come again up to the position
        nearest = (at >= 0) & (next_places(tokens)[:, at] > position)  # (B, T, W)
        context = tokens[:, at]
        a_word = context < self.vocab_size  # and not the start token of another order than left to right
        avoid = np.where(nearest & a_word & (context != following), context, -1)
        ids = np.concatenate((following, avoid), 2).reshape(B * T, -1)
        values = -(ids >= 0).astype(np.float16)  # -1, 0 and 1 are exact
        values[:, 0] = 1
        return Targets(torch.from_numpy(ids), torch.from_numpy(values))

    def loss(self, logits: Tensor, targets: Targets) -> Tensor:
        ce = cross_entropy(logits, targets.token)
        lse = ce + at(logits, targets.token)
        p = (logits.gather(1, targets.ids.clamp(min=0)) - lse[:, None]).exp()
        avoid = -targets.values.clamp(max=0).to(p.dtype)
        return ce - self.alpha * (avoid * (1 - p).clamp(min=1e-5).log()).sum(1)


class SmoothAccuracy(Softmax):
    """L = -p_t: p_t is the accuracy of sampling.

    Its gradient p_t (p - onehot(t)) vanishes where p_t does, so this is for fine-tuning (`init_from`). Its
    minimum is not the data's distribution, but all mass on the most probable token.
    Source: Su's survey, 2024 (spaces.ac.cn/archives/10145), section on loss functions.
    """

    def loss(self, logits: Tensor, targets: Targets) -> Tensor:
        return -cross_entropy(logits, targets.token).neg().exp()


class PowerLoss(Softmax):
    """L = (1 - p_t^alpha) / alpha: -log p_t where alpha is near 0, `SmoothAccuracy` at alpha = 1.

    Its gradient p_t^alpha (p - onehot(t)) counts a position the less the less probable its token is. Of data
    q its minimum is p ~ q^(1 / (1 - alpha)), and from alpha = 1 on all mass on the most probable token. In
    float32 the value, not the gradient, loses its digits below alpha = 1e-4.
    Source: Li et al. 2025, arXiv 2510.00526, for fine-tuning.
    """

    def __init__(self, vocab_size: int, alpha: float = 0.5):
        super().__init__(vocab_size)
        check_positive(alpha=alpha)
        self.alpha = alpha

    def loss(self, logits: Tensor, targets: Targets) -> Tensor:
        # not expm1, whose gradient torch takes as its value + 1: 0 where p_t is small
        return (1 - (-self.alpha * cross_entropy(logits, targets.token)).exp()) / self.alpha


class Brier(Softmax):
    """L = sum_v (p_v - y_v)^2 with y = onehot(t): a strictly proper score, bounded by 2.

    Its gradient vanishes where p_t does, so this is for fine-tuning (`init_from`).
    Source: Brier 1950, "Verification of forecasts expressed in terms of probability".
    """

    def loss(self, logits: Tensor, targets: Targets) -> Tensor:
        p = torch.softmax(logits, 1)
        return p.square().sum(1) - 2 * at(p, targets.token) + 1


class Spherical(Softmax):
    """L = 1 - p_t / |p|: a strictly proper score, bounded by 1.

    Its gradient vanishes where p_t does, so this is for fine-tuning (`init_from`).
    Source: Gneiting and Raftery 2007, "Strictly proper scoring rules, prediction, and estimation", sec. 4.1.
    """

    def loss(self, logits: Tensor, targets: Targets) -> Tensor:
        # of e^(z - max z), whose normaliser cancels
        scores = (logits - logits.amax(1, keepdim=True).detach()).exp()
        return 1 - at(scores, targets.token) / scores.norm(dim=1)


class StopGradient(Head):
    """L = sum_i stopgrad(p_i - onehot(t)_i) z_i: trains the map z -> p of another head by the gradient p -
    onehot(t).

    That head is `of`, a name in HEADS, made with `of_args`. Only the gradient means anything: the value may
    have either sign and need not fall. On softmax the gradient is cross-entropy's. This is for a map whose
    loss has no closed form, and for fine-tuning.
    Source: Su's survey, 2024 (spaces.ac.cn/archives/10145), on entmax. There the stop-gradient is printed on
    z, which would give another gradient.
    """

    def __init__(self, vocab_size: int, of: str = "softmax", of_args: dict | None = None):
        super().__init__(vocab_size)
        from . import named_head  # here, because it knows this class

        if of == "stop_gradient":
            raise ValueError(f"of = {of!r}: use the name of another head")
        self.of = named_head(of, vocab_size, of_args)
        self.of.requires_grad_(False)
        self.bias, self.cosine, self.sparse = self.of.bias, self.of.cosine, self.of.sparse
        self.reads_scale = self.of.reads_scale

    def loss(self, logits: Tensor, targets: Targets) -> Tensor:
        with torch.no_grad():
            p = self.log_probs(logits).exp()
        return (p * finite(logits)).sum(1) - at(logits, targets.token)

    def log_probs(self, logits: Tensor) -> Tensor:
        self.of.scale = self.scale
        return self.of.log_probs(logits)
