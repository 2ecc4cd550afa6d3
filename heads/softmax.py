"""Softmax, and heads p_i = F(z_i) / sum_j F(z_j) that are softmax over a link u = log F."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Head, Targets, add_at, at, check_positive, cross_entropy, cross_entropy_into

# A sum of F below this has lost its digits. The sum is then taken of e^(u - max u), as softmax does.
TINY = 1e-30


class Softmax(Head):
    """p = softmax(u(z)) with the link u(z) = z; loss = -log p_t.

    Every head of the form p_i = F(z_i) / sum_j F(z_j) is this one with u = log F: subclasses give `link`.
    """

    def link(self, z: Tensor) -> Tensor:
        return z

    def loss(self, logits: Tensor, targets: Targets) -> Tensor:
        return cross_entropy(self.link(logits), targets.token)

    def in_place(self, logits: Tensor, targets: Targets) -> Tensor:
        return cross_entropy_into(logits, logits, targets.token)

    def by_slope(self, logits: Tensor, targets: Targets, slope: Tensor) -> Tensor:
        """`in_place` of any link, by the chain rule: `slope` is u'(z) (N, V)."""
        loss = cross_entropy_into(logits, self.link(logits), targets.token)
        logits *= slope
        return loss

    def log_probs(self, logits: Tensor) -> Tensor:
        return F.log_softmax(self.link(logits), dim=-1)


class LabelSmoothing(Softmax):
    """Softmax trained towards y_t = 1 - eps, eps/(V-1) elsewhere; scored without smoothing.

    Unlike torch's own label smoothing, which spreads eps/V over all V tokens.
    Source: Shamula et al. 2024, "Altering and Evaluating GPT-Based Text Generation", eq. 1.
    """

    def __init__(self, vocab_size: int, eps: float = 0.05):
        super().__init__(vocab_size)
        if not 0 <= eps < 1:
            raise ValueError(f"eps = {eps}: label smoothing takes 0 <= eps < 1")
        self.eps = eps

    def loss(self, logits: Tensor, targets: Targets) -> Tensor:
        return cross_entropy(logits, targets.token, self.eps / (self.vocab_size - 1))

    def in_place(self, logits: Tensor, targets: Targets) -> Tensor:
        return cross_entropy_into(logits, logits, targets.token, self.eps / (self.vocab_size - 1))


class SoftCap(Softmax):
    """u(z) = c tanh(z / c): logits stay between -c and c. Source: Gemma 2, 2024, arXiv 2408.00118, sec. 2."""

    def __init__(self, vocab_size: int, cap: float = 30.0):
        super().__init__(vocab_size)
        check_positive(cap=cap)
        self.cap = cap

    def link(self, z: Tensor) -> Tensor:
        return self.cap * torch.tanh(z / self.cap)

    def in_place(self, logits: Tensor, targets: Targets) -> Tensor:
        return self.by_slope(logits, targets, 1 - torch.tanh(logits / self.cap).square())


class SigSoftmax(Softmax):
    """u(z) = z + log sigma(z), that is F(z) = e^z sigma(z).

    Source: Kanai et al. 2018, arXiv 1805.10829, eq. 8.

    It saturates nowhere (its slope runs from 2 down to 1), so it needs no bias.
    """

    def link(self, z: Tensor) -> Tensor:
        return z + F.logsigmoid(z)

    def in_place(self, logits: Tensor, targets: Targets) -> Tensor:
        """p = E s / sum_v E_v s_v with E = e^(z - max z) and s = sigma(z); u' = 2 - s."""
        z, s = logits, torch.sigmoid(logits)
        z_t, top = at(z, targets.token), z.amax(1, keepdim=True)
        if top.amin() < -60:  # sigma has lost its digits
            return self.by_slope(z, targets, 2 - s)
        torch.sub(z, top, out=z).exp_().mul_(s)
        total = z.sum(1, keepdim=True)
        z.mul_(total.reciprocal()).mul_(s.neg_().add_(2))
        add_at(z, targets.token, torch.sigmoid(z_t) - 2)
        return (total.log() + top).squeeze(1) - z_t - F.logsigmoid(z_t)


class GSSoftmaxF1(Softmax):
    """GS-Softmax with F1(z) = alpha sigma(z). Source: the GS-Softmax paper, eq. 7 and 9.

    alpha (the "range factor" of its Table 4) cancels in the normalisation: it is there to show that.
    The sigmoid saturates, so the head has a bias. It starts at -log V, so that sum_v F(z_v) starts at 1
    (Lin et al. 2017, arXiv 1708.02002, sec. 4.1).
    """

    def __init__(self, vocab_size: int, alpha: float = 1.0):
        super().__init__(vocab_size)
        if not 0 < alpha < math.inf:
            raise ValueError(f"alpha = {alpha}: the range factor must be positive and finite")
        self.log_alpha = math.log(alpha)
        self.bias = -math.log(vocab_size)

    def link(self, z: Tensor) -> Tensor:
        return F.logsigmoid(z) + self.log_alpha

    def in_place(self, logits: Tensor, targets: Targets) -> Tensor:
        """L = log sum_v s_v - log s_t with s = sigma(z): one exponential a logit.

        dL/dz_i = s_i (1 - s_i) / sum_v s_v - [i = t] (1 - s_t).
        """
        z, s = logits, torch.sigmoid(logits)
        total = s.sum(1, keepdim=True)
        if total.amin() < TINY:
            return self.by_slope(z, targets, 1 - s)
        z_t = at(z, targets.token)
        torch.addcmul(s, s, s, value=-1, out=z)
        z *= total.reciprocal()
        add_at(z, targets.token, -torch.sigmoid(-z_t))
        return total.log().squeeze(1) - F.logsigmoid(z_t)


class GSSoftmaxF2(GSSoftmaxF1):
    """GS-Softmax with F2(z) = alpha e^z for z < 0, alpha (1 + z) from 0 on.

    F2 is linear above 0. If all V tokens started at F2 = 1, a confident prediction would need a logit of
    about V. The bias of -log V starts them at F2 = 1/V.
    Source: the GS-Softmax paper, eq. 8.
    """

    def link(self, z: Tensor) -> Tensor:
        # A sum of the two branches. With torch.where, the branch not taken would reach the gradient, as
        # log1p is infinite at -1. At z = 0 clamp passes the gradient and relu does not, so the slope is 1.
        return z.clamp(max=0) + z.relu().log1p() + self.log_alpha

    def in_place(self, logits: Tensor, targets: Targets) -> Tensor:
        """As F1's, with F = n + max(z, 0) and F' = n, where n = e^min(z, 0)."""
        z, above = logits, logits.relu()
        z_t, total = at(z, targets.token), above.sum(1, keepdim=True)
        torch.sub(z, above, out=above).exp_()
        total += above.sum(1, keepdim=True)
        if total.amin() < TINY:
            return self.by_slope(z, targets, (1 + z.relu()).reciprocal_())
        torch.mul(above, total.reciprocal(), out=z)
        above_t = z_t.relu()
        add_at(z, targets.token, -1 / (1 + above_t))
        return total.log().squeeze(1) - z_t.clamp(max=0) - above_t.log1p()
