"""Softmax with other losses than -log p_t: it is scored and sampled as ever."""

import math

import numpy as np
import torch
from torch import Tensor

from .base import Head, Targets, at, cross_entropy
from .softmax import Softmax


class ConfidencePenalty(Softmax):
    """L = -log p_t - beta H(p): confident distributions pay. Source: Pereyra et al. 2017, arXiv 1701.06548, sec. 3.1."""

    def __init__(self, vocab_size: int, beta: float = 0.1):
        super().__init__(vocab_size)
        if not 0 <= beta < math.inf:
            raise ValueError(f"beta = {beta}: must be at least 0 and finite")
        self.beta = beta

    def loss(self, logits: Tensor, targets: Targets) -> Tensor:
        ce, z_t = cross_entropy(logits, targets.token), at(logits, targets.token)
        entropy = ce + z_t - (torch.softmax(logits, 1) * logits).sum(1)  # log-sum-exp - E_p[z]
        return ce - self.beta * entropy


class Unlikelihood(Softmax):
    """L = -log p_t - alpha sum_{c in C} log(1 - p_c), C the tokens of the context but for t. Source: Welleck et al. 2019, arXiv 1908.04319, eq. 4 and 5.

    C is the set of the last `window` tokens of the context, 0: all of the training window up to there, as in the paper. They come as labels of value -1,
    1 + window ids a position: a batch of 12 x 512 with window = 0 takes 38 MB. As in the authors' code 1 - p_c is at least 1e-5.
    """

    def __init__(self, vocab_size: int, alpha: float = 1.0, window: int = 0):
        super().__init__(vocab_size)
        if not 0 <= alpha < math.inf:
            raise ValueError(f"alpha = {alpha}: must be at least 0 and finite")
        if window < 0:
            raise ValueError(f"window = {window}: must be a number of tokens, or 0 for the whole context")
        self.alpha, self.window = alpha, window

    def targets(self, x: Tensor, y: Tensor) -> Targets:
        # in numpy: train.py's loader calls this in a thread, where torch would start a second team of threads
        x, y = x.numpy(), y.numpy()
        (B, T), i = x.shape, np.arange(x.shape[1])
        again = np.full((B, T), T)  # where the same token comes again
        seen = [{} for _ in range(B)]
        for j in reversed(range(T)):
            for b in range(B):
                again[b, j] = seen[b].get(x[b, j], T)
                seen[b][x[b, j]] = j
        at = i[:, None] - np.arange(min(self.window or T, T))  # (T, W): position i reads i, i - 1, ...
        ids = np.where(
            (at >= 0) & (again[:, at] > i[:, None]), x[:, at], -1
        )  # each token once, where it is nearest
        ids = np.where(ids == y[:, :, None], -1, ids)
        ids = np.concatenate((y[:, :, None], ids), 2).reshape(B * T, -1)
        values = -(ids >= 0).astype(np.float32)
        values[:, 0] = 1
        return Targets(torch.from_numpy(ids), torch.from_numpy(values))

    def loss(self, logits: Tensor, targets: Targets) -> Tensor:
        ce = cross_entropy(logits, targets.token)
        lse = ce + at(logits, targets.token)
        p = (logits.gather(1, targets.ids.clamp(min=0)) - lse[:, None]).exp()
        avoid = -targets.values.clamp(max=0).to(p.dtype)
        return ce - self.alpha * (avoid * (1 - p).clamp(min=1e-5).log()).sum(1)


class SmoothAccuracy(Softmax):
    """L = -p_t, the accuracy of sampling. Its gradient, p_t (p - onehot), vanishes where p_t does, so it is for fine-tuning (`init_from`); its minimum is
    all mass on the most probable token, not the data's distribution. Source: Su's survey, 2024 (spaces.ac.cn/archives/10145), section on loss functions."""

    def loss(self, logits: Tensor, targets: Targets) -> Tensor:
        return -cross_entropy(logits, targets.token).neg().exp()


class StopGradient(Head):
    """L = sum_i stopgrad(p_i - onehot(t)_i) z_i: trains the map p of the head `of` (a name in HEADS, with `of_args`) by the gradient p - onehot.

    Only the gradient means anything: the value may have either sign and need not fall. For a map whose loss has no closed form, and for fine-tuning;
    on softmax the gradient is cross-entropy's. Parameters of the head `of` (Taylor's scale) stay as they start. Source: Su's survey, 2024
    (spaces.ac.cn/archives/10145), on entmax, where the stop-gradient is printed on the other factor: that would have another gradient.
    """

    def __init__(self, vocab_size: int, of: str = "softmax", of_args: dict | None = None):
        super().__init__(vocab_size)
        from . import HEADS  # here, because it holds this class

        if of not in HEADS or of == "stop_gradient":
            raise ValueError(
                f"of = {of!r}: use the name of another head: {', '.join(h for h in HEADS if h != 'stop_gradient')}"
            )
        self.of = HEADS[of](vocab_size, **(of_args or {}))
        self.of.requires_grad_(False)
        self.bias, self.cosine, self.sparse = self.of.bias, self.of.cosine, self.of.sparse

    def loss(self, logits: Tensor, targets: Targets) -> Tensor:
        with torch.no_grad():
            p = self.log_probs(logits).exp()
        return (p * logits).sum(1) - at(logits, targets.token)

    def log_probs(self, logits: Tensor) -> Tensor:
        return self.of.log_probs(logits)
