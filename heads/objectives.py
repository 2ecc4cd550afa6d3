"""Softmax trained with other losses than -log p_t. Scoring and sampling are softmax's."""

import math

import torch
from torch import Tensor

from .base import Gradient, Head, Targets, at, cross_entropy, cross_entropy_parts
from .softmax import Softmax


def finite(z: Tensor) -> Tensor:
    """z with 0 for -inf, where p is 0: their product is to be 0."""
    return z.masked_fill(z == -math.inf, 0)


class SoftTargets(Softmax):
    """L = -sum_j q_j log p_j with sparse labels q = y / sum_j y_j: cross-entropy to a teacher's soft labels.

    It has the labels of the multi-label `Sigmoid` without its sigmoid. With the true token alone it is
    softmax. A position whose labels are all 0 has no loss.
    Source: Hinton et al. 2015, arXiv 1503.02531, eq. 2, on sparse labels.
    """

    multi_label = True

    loss = Head.loss  # that of `gradient`

    def gradient(self, logits: Tensor, targets: Targets) -> Gradient:
        """dL/dz_i = p_i sum_j q_j - q_i, where sum_j q_j is 1, or 0 where all labels are."""
        ids, y = targets.ids.clamp(min=0), targets.values.to(logits.dtype)
        q = y / y.sum(1, keepdim=True).clamp(min=torch.finfo(y.dtype).tiny)
        z, z_t = logits.gather(1, ids).masked_fill(q == 0, 0), at(logits, targets.token)
        share = q.sum(1, keepdim=True)
        ce, p, at_token = cross_entropy_parts(logits, targets.token)
        p *= share
        at_ids = p.gather(1, ids) - q
        at_ids[:, :1] = at_token * share + (share - q[:, :1])
        return (q * ((ce + z_t)[:, None] - z)).sum(1), p, at_ids


class SmoothAccuracy(Softmax):
    """L = -p_t: p_t is the accuracy of sampling.

    Its gradient p_t (p - onehot(t)) vanishes where p_t does, so this is for fine-tuning (`init_from`). Its
    minimum is not the data's distribution, but all mass on the most probable token.
    Source: Su's survey, 2024 (spaces.ac.cn/archives/10145), section on loss functions.
    """

    def loss(self, logits: Tensor, targets: Targets) -> Tensor:
        return -cross_entropy(logits, targets.token).neg().exp()


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

        self.of = named_head(of, vocab_size, of_args)
        self.of.requires_grad_(False)
        self.bias, self.cosine, self.sparse = self.of.bias, self.of.cosine, self.of.sparse
        self.reads_scale, self.compiles = self.of.reads_scale, self.of.compiles

    def gradient(self, logits: Tensor, targets: Targets) -> Gradient:
        p, z_t = self.log_probs(logits).exp(), at(logits, targets.token)
        loss = (p * finite(logits)).sum(1) - z_t
        return loss, p, (at(p, targets.token) - 1)[:, None]

    def log_probs(self, logits: Tensor) -> Tensor:
        self.of.scale = self.scale
        return self.of.log_probs(logits)
