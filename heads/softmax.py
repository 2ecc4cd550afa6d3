"""Softmax, and heads p_i = F(z_i) / sum_j F(z_j) that are softmax over a link u = log F."""

import math

import torch.nn.functional as F
from torch import Tensor

from .base import Head, Targets, check_positive, cross_entropy


class Softmax(Head):
    """p = softmax(u(z)) with the link u(z) = z; loss = -log p_t.

    Every head of the form p_i = F(z_i) / sum_j F(z_j) is this one with u = log F: subclasses give `link`.
    """

    def link(self, z: Tensor) -> Tensor:
        return z

    def loss(self, logits: Tensor, targets: Targets) -> Tensor:
        return cross_entropy(self.link(logits), targets.token)

    def log_probs(self, logits: Tensor) -> Tensor:
        return F.log_softmax(self.link(logits), dim=-1)


class LabelSmoothing(Softmax):
    """Softmax trained towards y_t = 1 - eps, eps/(V-1) elsewhere; scored without smoothing.

    Source: Shamula et al. 2024, "Altering and Evaluating GPT-Based Text Generation", eq. 1 (torch's own smoothing spreads eps/V over all V).
    """

    def __init__(self, vocab_size: int, eps: float = 0.05):
        super().__init__(vocab_size)
        if not 0 <= eps < 1:
            raise ValueError(f"eps = {eps}: label smoothing takes 0 <= eps < 1")
        self.eps = eps

    def loss(self, logits: Tensor, targets: Targets) -> Tensor:
        return cross_entropy(logits, targets.token, self.eps / (self.vocab_size - 1))


class Temperature(Softmax):
    """u(z) = z / tau, in training and in scoring. Source: the GS-Softmax paper, sec. 5.2 (Guo et al. 2017, arXiv 1706.04599).

    A model can undo tau by scaling its logits, so what it changes is the way there: initial scale and step size.
    """

    def __init__(self, vocab_size: int, tau: float = 2.0):
        super().__init__(vocab_size)
        check_positive(tau=tau)
        self.tau = tau

    def link(self, z: Tensor) -> Tensor:
        return z / self.tau


class SigSoftmax(Softmax):
    """u(z) = z + log sigma(z), that is F(z) = e^z sigma(z). Source: Kanai et al. 2018, arXiv 1805.10829, eq. 8.

    It saturates nowhere (its slope runs from 2 down to 1), so it needs no bias.
    """

    def link(self, z: Tensor) -> Tensor:
        return z + F.logsigmoid(z)


class GSSoftmaxF1(Softmax):
    """GS-Softmax with F1(z) = alpha sigma(z). Source: the GS-Softmax paper, eq. 7 and 9.

    alpha (its Table 4, the "range factor") cancels in the normalisation and cannot change anything; it is kept to show that.
    The sigmoid saturates, hence the bias: it starts at -log V so that sum_v F(z_v) starts at 1 (Lin et al. 2017, arXiv 1708.02002, sec. 4.1).
    """

    def __init__(self, vocab_size: int, alpha: float = 1.0):
        super().__init__(vocab_size)
        if not 0 < alpha < math.inf:
            raise ValueError(f"alpha = {alpha}: the range factor must be positive and finite")
        self.log_alpha, self.bias = math.log(alpha), -math.log(vocab_size)

    def link(self, z: Tensor) -> Tensor:
        return F.logsigmoid(z) + self.log_alpha


class GSSoftmaxF2(GSSoftmaxF1):
    """GS-Softmax with F2(z) = e^z for z < 0, 1 + z from 0 on, times alpha. Source: the GS-Softmax paper, eq. 8.

    Linear above 0, so a confident prediction among V tokens that start at F = 1 needs z ~ V: the bias of -log V starts them at F = 1/V.
    """

    def link(self, z: Tensor) -> Tensor:
        # a sum of two branches, not where: the one not taken must not reach the gradient (log1p is infinite at -1). clamp passes the gradient
        # at 0 and relu does not: together 1, the slope of both sides
        return z.clamp(max=0) + z.relu().log1p() + self.log_alpha
