"""Heads of no source document: caps and links of softmax, and other losses than -log p_t."""

import math

import numpy as np
import torch
from torch import Tensor

from heads.base import Gradient, Head, Targets, at, check_range, cross_entropy
from heads.objectives import finite
from heads.softmax import Softmax, gradient_through

# -----------------------------------------------------------------------------
# p = softmax(u(z)) of another link u


class SoftCap(Softmax):
    """u(z) = c tanh(z / c): logits stay between -c and c. Source: Gemma 2, 2024, arXiv 2408.00118, sec. 2."""

    def __init__(self, vocab_size: int, cap: float = 30.0):
        super().__init__(vocab_size)
        check_range("(0, inf)", cap=cap)
        self.cap = cap

    def link(self, z: Tensor) -> Tensor:
        return (self.cap * torch.tanh(z / self.cap)).masked_fill(z == -math.inf, -math.inf)

    def gradient(self, logits: Tensor, targets: Targets) -> Gradient:
        slope = 1 - torch.tanh(logits / self.cap).square()
        return gradient_through(self.link(logits), slope, targets.token)


class SigmoidCap(Softmax):
    """u(z) = cap sigma((z + shift) / width): logits between 0 and cap.

    The slope is largest at z = -shift: cap / (4 width).
    Source: the records of modded-nanogpt (Jordan et al. 2024, github.com/KellerJordan/modded-nanogpt). They
    first have 30 sigma(z / 7.5) = 15 + 15 tanh(z / 15), which is `SoftCap` at 15, for a constant cancels;
    later 23 sigma((z + 5) / 7.5), which saturates sooner above than below.
    """

    def __init__(self, vocab_size: int, cap: float = 23.0, shift: float = 5.0, width: float = 7.5):
        super().__init__(vocab_size)
        check_range("(0, inf)", cap=cap, width=width)
        check_range("(-inf, inf)", shift=shift)
        self.cap, self.shift, self.width = cap, shift, width

    def link(self, z: Tensor) -> Tensor:
        u = self.cap * torch.sigmoid((z + self.shift) / self.width)
        return u.masked_fill(z == -math.inf, -math.inf)


class StableMax(Softmax):
    """F(z) = z + 1 from 0 on and 1 / (1 - z) below, that is u(z) = sign(z) log(1 + |z|).

    Without a bias, as its source has it: a confident prediction needs a logit of about V.
    Source: Prieto et al. 2025, arXiv 2501.04697, section 4.
    """

    def link(self, z: Tensor) -> Tensor:
        return z.relu().log1p() - (-z.clamp(max=0)).log1p()


class Harmonic(Softmax):
    """Harmonic loss on d_i = 1 - cos(h, w_i): p_i ~ d_i^-n, that is u(z) = -s log(1 - z / s).

    Its logits are z = s cos(h, w) with s = g sqrt(C), and its exponent n is s: so the gain g sets the
    exponent, and the slope at z = 0 is 1, as softmax's. Between vectors of length 1 the squared Euclidean
    distance is 2 d, so n is half the exponent of the first source, who take sqrt(C) by default. A distance
    counts as 1e-4 at least.
    Sources: Baek et al. 2025, arXiv 2502.01628, of Euclidean distances; arXiv 2603.10225 of cosines.
    """

    cosine = reads_scale = True

    def link(self, z: Tensor) -> Tensor:
        return -self.scale * (1 - z / self.scale).clamp(min=1e-4).log()


# -----------------------------------------------------------------------------
# Softmax trained with other losses; it scores and samples as softmax


class ConfidencePenalty(Softmax):
    """L = -log p_t - beta H(p): confident distributions pay.

    Source: Pereyra et al. 2017, arXiv 1701.06548, sec. 3.1.
    """

    def __init__(self, vocab_size: int, beta: float = 0.1):
        super().__init__(vocab_size)
        check_range("[0, inf)", beta=beta)
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
        check_range("[0, inf)", alpha=alpha)
        self.alpha = alpha

    def loss(self, logits: Tensor, targets: Targets) -> Tensor:
        ce = cross_entropy(logits, targets.token)
        log_z = ce + at(logits, targets.token)
        return ce + self.alpha * log_z.square()


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
        check_range("[0, inf)", alpha=alpha, window=window)
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


class PowerLoss(Softmax):
    """L = (1 - p_t^alpha) / alpha: -log p_t where alpha is near 0, `SmoothAccuracy` at alpha = 1.

    Its gradient p_t^alpha (p - onehot(t)) counts a position the less the less probable its token is. Of data
    q its minimum is p ~ q^(1 / (1 - alpha)), and from alpha = 1 on all mass on the most probable token. In
    float32 the value, not the gradient, loses its digits below alpha = 1e-4.
    Source: Li et al. 2025, arXiv 2510.00526, for fine-tuning.
    """

    def __init__(self, vocab_size: int, alpha: float = 0.5):
        super().__init__(vocab_size)
        check_range("(0, inf)", alpha=alpha)
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


HEADS: dict[str, type[Head]] = {
    "softcap": SoftCap,
    "sigmoid_cap": SigmoidCap,
    "stablemax": StableMax,
    "harmonic": Harmonic,
    "confidence_penalty": ConfidencePenalty,
    "z_loss": ZLoss,
    "unlikelihood": Unlikelihood,
    "power_loss": PowerLoss,
    "brier": Brier,
    "spherical": Spherical,
}
