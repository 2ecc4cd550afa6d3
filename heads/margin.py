"""Margins: in the loss, the true token's logit must win by m."""

from torch import Tensor

from .base import Gradient, Targets, add_at, check_range, cross_entropy
from .softmax import Softmax


def lower(z: Tensor, token: Tensor, m: float) -> Tensor:
    """z (N, V) with z_t - m in place of z_t."""
    return z.scatter_add(1, token[:, None], z.new_full((len(z), 1), -m))


class SMSoftmax(Softmax):
    """Soft-margin softmax: L = -log e^(z_t - m) / (e^(z_t - m) + sum_{j != t} e^(z_j)); scored with m = 0.

    The margin stays in the loss because the p_i = e^(z_i - m) / (e^(z_i - m) + sum_{j != i} e^(z_j)) of the
    paper do not sum to one over i: they are no distribution.
    The minimum of the loss is not the data's distribution: it overstates the probable tokens.
    Source: Liang et al. 2017; Banerjee et al. 2021, eq. 8, whose m = 0.6 is the default.
    """

    def __init__(self, vocab_size: int, m: float = 0.6):
        super().__init__(vocab_size)
        check_range("[0, inf)", m=m)
        self.m = m

    def loss(self, logits: Tensor, targets: Targets) -> Tensor:
        return cross_entropy(lower(logits, targets.token, self.m), targets.token)

    def gradient(self, logits: Tensor, targets: Targets) -> Gradient:
        return super().gradient(add_at(logits, targets.token, -self.m), targets)


class AMSoftmax(SMSoftmax):
    """Additive-margin softmax: `SMSoftmax` on the logits z_v = g sqrt(C) cos(h, w_v) of a gain g.

    The paper's s is g sqrt(C), and its margin in cosines is m / s. Its s = 30 is a gain of 1.08 at C = 768:
    a LayerNorm leaves hidden states of about the length sqrt(C), so at a gain of 1 only the lengths of the
    weights differ from softmax's. The paper's margin for faces, 0.35 in cosines, is ten nats at s = 30, more
    than the next token of a text can give: the default is that of `SMSoftmax`.
    Source: Wang et al. 2018, arXiv 1801.05599, eq. 6.
    """

    cosine = True
