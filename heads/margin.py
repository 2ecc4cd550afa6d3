"""Margins: in the loss, the true token's logit must win by m."""

import math

import torch
import torch.nn as nn
from torch import Tensor

from .base import Targets, add_at, check_positive, cross_entropy, cross_entropy_into
from .softmax import Softmax


def lower(z: Tensor, token: Tensor, m: float) -> Tensor:
    """z (N, V) with z_t - m in place of z_t."""
    return z.scatter_add(1, token[:, None], z.new_full((len(z), 1), -m))


def check_margin(m: float) -> None:
    if not 0 <= m < math.inf:
        raise ValueError(f"m = {m}: the margin must be at least 0 and finite")


class SMSoftmax(Softmax):
    """Soft-margin softmax: L = -log e^(z_t - m) / (e^(z_t - m) + sum_{j != t} e^(z_j)); scored with m = 0.

    The margin stays in the loss because the p_i = e^(z_i - m) / (e^(z_i - m) + sum_{j != i} e^(z_j)) of the
    paper do not sum to one over i: they are no distribution.
    The minimum of the loss is not the data's distribution: it overstates the probable tokens.
    Source: Liang et al. 2017; Banerjee et al. 2021, eq. 8, whose m = 0.6 is the default.
    """

    def __init__(self, vocab_size: int, m: float = 0.6):
        super().__init__(vocab_size)
        check_margin(m)
        self.m = m

    def loss(self, logits: Tensor, targets: Targets) -> Tensor:
        return cross_entropy(lower(logits, targets.token, self.m), targets.token)

    def in_place(self, logits: Tensor, targets: Targets) -> Tensor:
        z = add_at(logits, targets.token, -self.m)
        return cross_entropy_into(z, z, targets.token)


class AMSoftmax(Softmax):
    """Additive-margin softmax on cosines c_v = cos(h, w_v); scored with m = 0.

        L = -log softmax(c / tau)_t, with c_t - m in place of c_t

    tau is learned; the argument is where it starts. If one token has cosine 1 and the other V - 1 have cosine
    0, its p is 1 / (1 + (V - 1) e^(-1/tau)): 0.9999 at V = 50,257 for the default 1/tau = 20.
    m / tau is the margin in nats: 0.6 by default, as in SM-softmax. Face recognition takes m = 0.35 and
    1/tau = 30. That is ten nats, more than the next token of a text can give.
    Source: Wang et al. 2018, arXiv 1801.05599, eq. 6.
    """

    cosine = True

    def __init__(self, vocab_size: int, m: float = 0.03, tau: float = 0.05):
        super().__init__(vocab_size)
        check_margin(m)
        check_positive(tau=tau)
        self.m = m
        self.log_tau = nn.Parameter(torch.tensor(math.log(tau)))

    def link(self, z: Tensor) -> Tensor:
        return z * self.log_tau.neg().exp()

    def loss(self, logits: Tensor, targets: Targets) -> Tensor:
        return cross_entropy(self.link(lower(logits, targets.token, self.m)), targets.token)
