"""Softmax, and heads p_i = F(z_i) / sum_j F(z_j) that are softmax over a link u = log F."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Gradient, Head, Targets, at, check_range, cross_entropy, cross_entropy_parts

# A sum of F below this has lost its digits. The sum is then taken of e^(u - max u), as softmax does.
TINY = 1e-30


def gradient_through(u: Tensor, slope: Tensor, token: Tensor) -> Gradient:
    """`Head.gradient` of L = -log softmax(u(z))_t by the chain rule, of scores u and their slope u'(z)
    (N, V). It overwrites u."""
    loss, p, at_token = cross_entropy_parts(u, token)
    return loss, p.mul_(slope), at_token * at(slope, token)[:, None]


class Softmax(Head):
    """p = softmax(u(z)) with the link u(z) = z; loss = -log p_t.

    Every head of the form p_i = F(z_i) / sum_j F(z_j) is this one with u = log F: subclasses give `link`.
    They do not inherit `gradient` (Head.__init_subclass__): without one of their own autograd takes it.
    """

    def link(self, z: Tensor) -> Tensor:
        return z

    def loss(self, logits: Tensor, targets: Targets) -> Tensor:
        return cross_entropy(self.link(logits), targets.token)

    def gradient(self, logits: Tensor, targets: Targets) -> Gradient:
        return cross_entropy_parts(logits, targets.token)

    def log_probs(self, logits: Tensor) -> Tensor:
        return F.log_softmax(self.link(logits), dim=-1)


class SoftmaxBias(Softmax):
    """Softmax with a trained output bias. With `unigram_bias` it starts at the log frequencies of the train
    tokens. Source: Meister et al. 2023, arXiv 2212.09686."""

    bias = 0.0


class LabelSmoothing(Softmax):
    """Softmax trained towards y_t = 1 - eps, eps/(V-1) elsewhere; scored without smoothing.

    Unlike torch's own label smoothing, which spreads eps/V over all V tokens.
    Source: Shamula et al. 2024, "Altering and Evaluating GPT-Based Text Generation", eq. 1.
    """

    def __init__(self, vocab_size: int, eps: float = 0.05):
        super().__init__(vocab_size)
        check_range("[0, 1)", eps=eps)
        self.eps = eps

    def loss(self, logits: Tensor, targets: Targets) -> Tensor:
        return cross_entropy(logits, targets.token, self.eps / (self.vocab_size - 1))

    def gradient(self, logits: Tensor, targets: Targets) -> Gradient:
        return cross_entropy_parts(logits, targets.token, self.eps / (self.vocab_size - 1))


class SigSoftmax(Softmax):
    """u(z) = z + log sigma(z), that is F(z) = e^z sigma(z).

    Its slope runs from 2 down to 1: it saturates nowhere, so it needs no bias.
    Source: Kanai et al. 2018, arXiv 1805.10829, eq. 8.
    """

    def link(self, z: Tensor) -> Tensor:
        return z + F.logsigmoid(z)

    def gradient(self, logits: Tensor, targets: Targets) -> Gradient:
        """p = E s / sum_v E_v s_v with E = e^(z - max z) and s = sigma(z); u' = 2 - s."""
        z, s, top = logits, torch.sigmoid(logits), logits.amax(1, keepdim=True)
        if torch.compiler.is_compiling() or top.amin() < -60:  # there sigma has lost its digits
            return gradient_through(self.link(z), 2 - s, targets.token)
        z_t = at(z, targets.token)
        torch.sub(z, top, out=z).exp_().mul_(s)
        total = z.sum(1, keepdim=True)
        z.mul_(total.reciprocal()).mul_(s.neg_().add_(2))
        at_token = at(z, targets.token) + (torch.sigmoid(z_t) - 2)
        return (total.log() + top).squeeze(1) - z_t - F.logsigmoid(z_t), z, at_token[:, None]


class GSSoftmaxF1(Softmax):
    """GS-Softmax with F1(z) = alpha sigma(z). Source: the GS-Softmax paper, eq. 7 and 9.

    alpha (the "range factor" of its Table 4) cancels in the normalisation: it is there to show that.
    The sigmoid saturates, so the head has a bias. It starts at -log V, so that sum_v F(z_v) starts at 1
    (Lin et al. 2017, arXiv 1708.02002, sec. 4.1).
    """

    def __init__(self, vocab_size: int, alpha: float = 1.0):
        super().__init__(vocab_size)
        check_range("(0, inf)", alpha=alpha)
        self.log_alpha = math.log(alpha)
        self.bias = -math.log(vocab_size)

    def link(self, z: Tensor) -> Tensor:
        return F.logsigmoid(z) + self.log_alpha

    def gradient(self, logits: Tensor, targets: Targets) -> Gradient:
        """L = log sum_v s_v - log s_t with s = sigma(z): one exponential a logit.

        dL/dz_i = s_i (1 - s_i) / sum_v s_v - [i = t] (1 - s_t).
        """
        if torch.compiler.is_compiling() or logits.amax(1).amin() < -60:  # there sigma has lost its digits
            return gradient_through(self.link(logits), torch.sigmoid(-logits), targets.token)
        z_t, s = at(logits, targets.token), logits.sigmoid_()
        total = s.sum(1, keepdim=True)
        s.addcmul_(s, s, value=-1).mul_(total.reciprocal())
        at_token = at(s, targets.token) - torch.sigmoid(-z_t)
        return total.log().squeeze(1) - F.logsigmoid(z_t), s, at_token[:, None]


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

    def gradient(self, logits: Tensor, targets: Targets) -> Gradient:
        """L = log sum_v F_v - log F_t with F = n + max(z, 0), whose slope is n = e^min(z, 0).

        dL/dz_i = n_i / sum_v F_v - [i = t] n_t / F_t, where n_t / F_t = 1 / (1 + max(z_t, 0)).
        """
        if torch.compiler.is_compiling():
            return self._by_slope(logits, targets)
        above, z_t = logits.relu(), at(logits, targets.token)
        total = above.sum(1, keepdim=True)
        torch.sub(logits, above, out=above).exp_()
        total += above.sum(1, keepdim=True)
        if total.amin() < TINY:
            return self._by_slope(logits, targets)
        above *= total.reciprocal()
        above_t = z_t.relu()
        at_token = at(above, targets.token) - 1 / (1 + above_t)
        return total.log().squeeze(1) - z_t.clamp(max=0) - above_t.log1p(), above, at_token[:, None]

    def _by_slope(self, logits: Tensor, targets: Targets) -> Gradient:
        return gradient_through(self.link(logits), (1 + logits.relu()).reciprocal(), targets.token)
