"""Taylor polynomials in place of the exponential: p_i = f_n(z_i) / sum_j f_n(z_j).

Here f_n(z) = sum_{i <= n} z^i / i!.
"""

import math

import torch
from torch import Tensor

from .base import Targets, add_at, check_not_negative
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


class Taylor(Softmax):
    """Taylor softmax: p_i = f_n(z_i) / sum_j f_n(z_j), n even.

    For even n, f_n is positive everywhere, but below its minimum (z = -1 for n = 2) it rises again. An odd
    f_n is negative there and gives no distribution.
    Every token keeps a share, since f_2 >= 1/2. Among V = 50,257 tokens p = 0.9 needs f_2 = 226,000, so z =
    670: far beyond the logits that softmax needs. Hence its configurations' gain of 20 / n.
    There is a bias because a shift of all logits changes p, which it does not in softmax.
    Source: de Brebisson & Vincent 2016, arXiv 1511.05042; Banerjee et al. 2021, eq. 3 to 5.
    """

    def __init__(self, vocab_size: int, n: int = 2):
        super().__init__(vocab_size)
        if n not in (2, 4, 6, 8, 10):
            why = ""
            if isinstance(n, int) and n % 2:
                why = "an odd f_n is negative below its root, so it gives no probabilities; "
            raise ValueError(f"n = {n}: {why}use an even order, 2, 4, 6, 8 or 10")
        self.n, self.bias = n, 0.0

    def link(self, z: Tensor) -> Tensor:
        a = z.detach().abs().clamp(min=1)  # it cancels, so it needs no gradient
        return taylor(z, a, self.n)[0].log() + self.n * a.log()


class TaylorInf(Taylor):
    """Taylor-n forward; backward p - onehot(t), as if n were infinite, times the sign of f_n'.

    What is passed back is not the gradient of the reported loss, nor of any other.
    Eq. 6 of Banerjee et al. 2021 has no sign (`published` = True). Then an improbable token is pushed down
    past the minimum of f_n, where f_n rises again, and all of p drifts towards the uniform distribution. The
    sign turns such a token back.
    """

    def __init__(self, vocab_size: int, n: int = 2, published: bool = False):
        super().__init__(vocab_size, n)
        self.published = published

    def loss(self, logits: Tensor, targets: Targets) -> Tensor:
        with torch.no_grad():
            loss = super().loss(logits, targets)
            passed_back = add_at(self.log_probs(logits).exp(), targets.token, -1)
            if not self.published:
                passed_back *= taylor(logits, logits.abs().clamp(min=1), self.n)[1].sign()
        # what is added is 0, and its gradient is `passed_back`
        return loss + (passed_back * (logits - logits.detach())).sum(1)


class SMTaylor(Taylor):
    """Taylor-n with a soft margin; scored with m = 0, for the reason that `SMSoftmax` gives.

        L = -log f_n(z_t - m) / (f_n(z_t - m) + sum_{j != t} f_n(z_j))

    At V = 50k, where z_t is in the hundreds, m = 0.6 is a small margin: n m / z_t nats.
    Source: Banerjee et al. 2021, sec. 2.4.
    """

    def __init__(self, vocab_size: int, n: int = 2, m: float = 0.6):
        super().__init__(vocab_size, n)
        check_not_negative(m=m)
        self.m = m

    def loss(self, logits: Tensor, targets: Targets) -> Tensor:
        return super().loss(lower(logits, targets.token, self.m), targets)
