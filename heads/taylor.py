"""Taylor polynomials in place of the exponential: p_i = f_n(z_i) / sum_j f_n(z_j).

Here f_n(z) = sum_{i <= n} z^i / i!.
"""

import math

import torch
from torch import Tensor

from .base import Gradient, Head, Targets, add_at, at, check_choice, check_range
from .margin import lower
from .softmax import Softmax


def taylor(z: Tensor, a: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """f_n(z) / a^n and f_(n-1)(z) / a^(n-1), by Horner's rule in z/a. f_(n-1) is the derivative of f_n.

    Nothing overflows for a >= max(|z|, 1).
    """
    r, q = z / a, 1 / a
    power, below, top = torch.ones_like(q), torch.full_like(r, 1 / math.factorial(n - 1)), r
    for i in reversed(range(n - 1)):
        power = power * q
        below = torch.addcmul(power / math.factorial(i), below, r)
        top = top * r
    return below * q + top / math.factorial(n), below


def taylor_(z: Tensor, a: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """`taylor(z, a, n)`, which overwrites z: both by one Horner's rule, in three arrays."""
    r, q = z.div_(a), 1 / a
    f, slope = torch.full_like(r, 1 / math.factorial(n)), torch.zeros_like(r)
    for i in reversed(range(n)):
        slope.mul_(r).add_(f)
        f.mul_(r).add_(q ** (n - i) / math.factorial(i))
    return f, slope


class Taylor(Softmax):
    """Taylor softmax: p_i = f_n(z_i) / sum_j f_n(z_j), n even.

    For even n, f_n is positive everywhere, but below its minimum (z = -1 for n = 2) it rises again. An odd
    f_n is negative there and gives no distribution.
    Every token keeps a share, since f_2 >= 1/2, and a very low logit a large one: only -inf bans a token.
    Among V = 50,257 tokens p = 0.9 needs f_2 = 226,000, so z = 670: far beyond the logits that softmax needs.
    Hence its configurations' gain of 20 / n.
    There is a bias because a shift of all logits changes p, which it does not in softmax.
    Source: de Brebisson & Vincent 2016, arXiv 1511.05042; Banerjee et al. 2021, eq. 3 to 5.
    """

    def __init__(self, vocab_size: int, n: int = 2):
        super().__init__(vocab_size)
        check_choice((2, 4, 6, 8, 10), n=n)
        self.n, self.bias = n, 0.0

    def link(self, z: Tensor) -> Tensor:
        banned = z == -math.inf  # f_n is for finite logits alone
        z = z.masked_fill(banned, 0)
        a = z.detach().abs().clamp(min=1)  # it cancels, so it needs no gradient
        return (taylor(z, a, self.n)[0].log() + self.n * a.log()).masked_fill(banned, -math.inf)

    def gradient(self, logits: Tensor, targets: Targets) -> Gradient:
        """L = log sum_j f_n(z_j) - log f_n(z_t): one logarithm a row.

        dL/dz_i = f_n'(z_i) / sum_j f_n(z_j) - [i = t] f_n'(z_t) / f_n(z_t).
        Source: Banerjee et al. 2021, eq. 5.
        """
        loss, f, slope, total, a, at_token = self._parts(logits, targets.token)
        gradient = torch.div(slope, a * total, out=f)
        return loss, gradient, (at(gradient, targets.token) + at_token)[:, None]

    def _parts(self, z: Tensor, token: Tensor) -> tuple[Tensor, ...]:
        """The loss (N,); f_n / a^n, f_n' / a^(n - 1), the sum of the former and the scale a of each row; and
        -f_n'(z_t) / f_n(z_t) (N,). It overwrites z."""
        n, z_t, banned = self.n, at(z, token), None
        if torch.compiler.is_compiling() or z.amin() == -math.inf:
            banned = z == -math.inf
            z.masked_fill_(banned, 0)
        a = torch.maximum(z.amax(1, keepdim=True), -z.amin(1, keepdim=True)).clamp(min=1)
        f, slope = taylor_(z, a, n)
        if banned is not None:
            f, slope = f.masked_fill_(banned, 0), slope.masked_fill_(banned, 0)
        total, a_t = f.sum(1, keepdim=True), z_t.abs().clamp(min=1)
        f_t, slope_t = taylor(z_t, a_t, n)
        loss = (total.log() + n * a.log()).squeeze(1) - f_t.log() - n * a_t.log()
        return loss, f, slope, total, a, -slope_t / (a_t * f_t)


class TaylorInf(Taylor):
    """Taylor-n whose backward is p - onehot(t), as if n were infinite, times the sign of f_n'.

    That is not the gradient of the reported loss, nor of any other.
    Eq. 6 of Banerjee et al. 2021 has no sign (`published` = True). Then an improbable token is pushed down
    past the minimum of f_n, where f_n rises again, and all of p drifts towards the uniform distribution. The
    sign turns such a token back.
    """

    def __init__(self, vocab_size: int, n: int = 2, published: bool = False):
        super().__init__(vocab_size, n)
        self.published = published

    loss = Head.loss  # that of `gradient`

    def gradient(self, logits: Tensor, targets: Targets) -> Gradient:
        """Source: Banerjee et al. 2021, eq. 6."""
        loss, f, slope, total, *_ = self._parts(logits, targets.token)
        gradient = f.div_(total)
        at_token = at(gradient, targets.token) - 1
        if not self.published:
            slope.sign_()
            gradient *= slope
            at_token *= at(slope, targets.token)
        return loss, gradient, at_token[:, None]


class SMTaylor(Taylor):
    """Taylor-n with a soft margin; scored with m = 0, for the reason that `SMSoftmax` gives.

        L = -log f_n(z_t - m) / (f_n(z_t - m) + sum_{j != t} f_n(z_j))

    At V = 50k, where z_t is in the hundreds, m = 0.6 is a small margin: n m / z_t nats.
    Source: Banerjee et al. 2021, sec. 2.4.
    """

    def __init__(self, vocab_size: int, n: int = 2, m: float = 0.6):
        super().__init__(vocab_size, n)
        check_range("[0, inf)", m=m)
        self.m = m

    def loss(self, logits: Tensor, targets: Targets) -> Tensor:
        return super().loss(lower(logits, targets.token, self.m), targets)

    def gradient(self, logits: Tensor, targets: Targets) -> Gradient:
        return super().gradient(add_at(logits, targets.token, -self.m), targets)
