"""Optional: losses whose gradient is written out, which a CPU computes in half the time that autograd takes.

A closed form f(head, z, targets) returns `head.loss(z, targets)` (N,) and overwrites the logits z (N, V) with
its gradient. CLOSED_FORMS has one for some classes of heads; `chunked_loss` uses it on a CPU. A head without
one is differentiated by autograd. So all heads work without this file: who deletes it deletes two lines of
__init__.py, too.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Targets, add_at, at, cross_entropy_and_gradient
from .margin import AMSoftmax, SMSoftmax
from .perturb import NOISES, PerturbMax, sum_log1m
from .sigmoid import Sigmoid
from .softmax import GSSoftmaxF1, GSSoftmaxF2, LabelSmoothing, SigSoftmax, SoftCap, Softmax
from .sparse import Entmax, Entmax15, Sparsemax, entmax_loss
from .taylor import SMTaylor, Taylor, TaylorInf, taylor

# -----------------------------------------------------------------------------
# Softmax of a link u: L = -log softmax(u(z))_t, dL/dz = (softmax(u) - onehot(t)) u'(z)

# A sum of F below this has lost its digits. The sum is then taken of e^(u - max u), as softmax does.
TINY = 1e-30


def softmax(head: Softmax, z: Tensor, targets: Targets) -> Tensor:
    return cross_entropy_and_gradient(z, targets.token, out=z)[0]


def label_smoothing(head: LabelSmoothing, z: Tensor, targets: Targets) -> Tensor:
    return cross_entropy_and_gradient(z, targets.token, head.eps / (head.vocab_size - 1), out=z)[0]


def margin(head: SMSoftmax, z: Tensor, targets: Targets) -> Tensor:
    return softmax(head, add_at(z, targets.token, -head.m), targets)


def by_slope(head: Softmax, z: Tensor, targets: Targets, slope: Tensor) -> Tensor:
    """Any link, by the chain rule: `slope` is u'(z) (N, V)."""
    loss, _ = cross_entropy_and_gradient(head.link(z), targets.token, out=z)
    z *= slope
    return loss


def softcap(head: SoftCap, z: Tensor, targets: Targets) -> Tensor:
    return by_slope(head, z, targets, 1 - torch.tanh(z / head.cap).square())


def sigsoftmax(head: SigSoftmax, z: Tensor, targets: Targets) -> Tensor:
    """p = E s / sum_v E_v s_v with E = e^(z - max z) and s = sigma(z); u' = 2 - s."""
    s, z_t, top = torch.sigmoid(z), at(z, targets.token), z.amax(1, keepdim=True)
    if top.amin() < -60:  # sigma has lost its digits
        return by_slope(head, z, targets, 2 - s)
    torch.sub(z, top, out=z).exp_().mul_(s)
    total = z.sum(1, keepdim=True)
    z.mul_(total.reciprocal()).mul_(s.neg_().add_(2))
    add_at(z, targets.token, torch.sigmoid(z_t) - 2)
    return (total.log() + top).squeeze(1) - z_t - F.logsigmoid(z_t)


def gs_softmax_f1(head: GSSoftmaxF1, z: Tensor, targets: Targets) -> Tensor:
    """L = log sum_v s_v - log s_t with s = sigma(z): one exponential a logit.

    dL/dz_i = s_i (1 - s_i) / sum_v s_v - [i = t] (1 - s_t).
    """
    if z.amax(1).amin() < -60:  # sigma has lost its digits
        return by_slope(head, z, targets, torch.sigmoid(-z))
    z_t, s = at(z, targets.token), z.sigmoid_()
    total = s.sum(1, keepdim=True)
    s.addcmul_(s, s, value=-1).mul_(total.reciprocal())
    add_at(z, targets.token, -torch.sigmoid(-z_t))
    return total.log().squeeze(1) - F.logsigmoid(z_t)


def gs_softmax_f2(head: GSSoftmaxF2, z: Tensor, targets: Targets) -> Tensor:
    """As F1's, with F = n + max(z, 0) and F' = n, where n = e^min(z, 0)."""
    above, z_t = z.relu(), at(z, targets.token)
    total = above.sum(1, keepdim=True)
    torch.sub(z, above, out=above).exp_()
    total += above.sum(1, keepdim=True)
    if total.amin() < TINY:
        return by_slope(head, z, targets, (1 + z.relu()).reciprocal_())
    torch.mul(above, total.reciprocal(), out=z)
    above_t = z_t.relu()
    add_at(z, targets.token, -1 / (1 + above_t))
    return total.log().squeeze(1) - z_t.clamp(max=0) - above_t.log1p()


# -----------------------------------------------------------------------------
# Taylor softmax: one logarithm a row, where softmax of its link takes one a logit


def taylor_(z: Tensor, a: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """`taylor(z, a, n)`, which overwrites z: both by one Horner's rule, in three arrays."""
    r, q = z.div_(a), 1 / a
    f, slope = torch.full_like(r, 1 / math.factorial(n)), torch.zeros_like(r)
    for i in reversed(range(n)):
        slope.mul_(r).add_(f)
        f.mul_(r).add_(q ** (n - i) / math.factorial(i))
    return f, slope


def taylor_softmax(head: Taylor, z: Tensor, targets: Targets) -> Tensor:
    """L = log sum_j f_n(z_j) - log f_n(z_t); dL/dz_i = f_n'(z_i) / sum_j f_n(z_j) - [i = t] f_n'(z_t) /
    f_n(z_t). For `TaylorInf` the gradient is what that head passes back.

    Source: Banerjee et al. 2021, eq. 5 and 6.
    """
    n, token = head.n, targets.token
    z_t, a = at(z, token), torch.maximum(z.amax(1, keepdim=True), -z.amin(1, keepdim=True)).clamp(min=1)
    f, slope = taylor_(z, a, n)  # f_n / a^n and f_n' / a^(n-1)
    total = f.sum(1, keepdim=True)
    a_t = z_t.abs().clamp(min=1)
    f_t, slope_t = taylor(z_t, a_t, n)
    if isinstance(head, TaylorInf):
        gradient = add_at(torch.div(f, total, out=z), token, -1)
        if not head.published:
            gradient *= slope.sign()
    else:
        add_at(torch.div(slope, a * total, out=z), token, -slope_t / (a_t * f_t))
    return (total.log() + n * a.log()).squeeze(1) - f_t.log() - n * a_t.log()


def taylor_margin(head: SMTaylor, z: Tensor, targets: Targets) -> Tensor:
    return taylor_softmax(head, add_at(z, targets.token, -head.m), targets)


# -----------------------------------------------------------------------------
# Others


def sigmoid(head: Sigmoid, z: Tensor, targets: Targets) -> Tensor:
    """One sigmoid a logit, by two identities:

    sum_v softplus(z_v)             = sum_v max(z_v, 0) - log(1 - q_v) with q = sigma(-|z|)
    w softplus(-z_j) - softplus(z_j) = (w - 1) softplus(-z_j) - z_j
    """
    ids, values = targets.ids.clamp(min=0), targets.values  # the padding's values are 0
    z_at = z.gather(1, ids)
    positive, d_positive = -z_at, -values.to(z.dtype)
    if head.pos_weight != 1:
        positive = positive + (head.pos_weight - 1) * F.softplus(-z_at)
        d_positive = d_positive * (1 + (head.pos_weight - 1) * torch.sigmoid(-z_at))
    loss = z.relu().sum(1) + (values * positive).sum(1)
    d = torch.sigmoid(z, out=z)
    q = 1 - d
    loss -= sum_log1m(torch.minimum(d, q, out=q))
    if head.sum_weight:
        excess = d.sum(1, keepdim=True) - 1
        loss += head.sum_weight * excess.squeeze(1).square()
        d.addcmul_(d * (1 - d), 2 * head.sum_weight * excess)
    d.scatter_add_(1, ids, d_positive)
    return loss


def fenchel_young(head: Entmax, z: Tensor, targets: Targets) -> Tensor:
    return entmax_loss(z, targets.token, head.alpha, out=z)[0]


def perturb_max(head: PerturbMax, z: Tensor, targets: Targets) -> Tensor:
    return NOISES[head.noise][0](z, targets.token, out=z)[0]


CLOSED_FORMS: dict[type, Callable[[Any, Tensor, Targets], Tensor]] = {
    Softmax: softmax,
    LabelSmoothing: label_smoothing,
    SoftCap: softcap,
    SigSoftmax: sigsoftmax,
    GSSoftmaxF1: gs_softmax_f1,
    GSSoftmaxF2: gs_softmax_f2,
    SMSoftmax: margin,
    AMSoftmax: margin,
    Taylor: taylor_softmax,
    TaylorInf: taylor_softmax,
    SMTaylor: taylor_margin,
    Sigmoid: sigmoid,
    Sparsemax: fenchel_young,
    Entmax15: fenchel_young,
    Entmax: fenchel_young,
    PerturbMax: perturb_max,
}
