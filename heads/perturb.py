"""Perturb-max: the token is the argmax of noisy logits."""

import functools
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Head, Targets, add_at, at, cross_entropy, with_gradient

# -----------------------------------------------------------------------------
# Normal noise: F is the distribution function of N(0, 1), and logits are relative to the row's largest.
#
# A row needs log F(y - z_v) and the hazard h(y - z_v), which are smooth functions of the scalar z_v. They are
# tabulated once at BINS values of z in [FLOOR, 0], 1 / PER apart. Each logit takes the Taylor series at the
# value nearest to it. A sum over the row then needs only the sums, in each bin, of the powers of the logits'
# distances from that value: a row costs O(V) and two products with a table.

PER = 32  # bins in a unit of z
FLOOR = -16  # lower logits weigh nothing: 1 - F(LOW - FLOOR) = 1e-9
LOW = -10  # the lowest point y, where p_t = 1e-20
BINS = 1 - FLOOR * PER


@functools.lru_cache(maxsize=8)
def normal_tables(vocab_size: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """The points y (Q,) of the integral, and the Taylor coefficients in z at each bin, for each y.

    The coefficients are those of log F(y - z) (4 BINS, Q) up to the third, and of h(y - z) (Q, 3 BINS) up to
    the second. The points fall from where the noisy logits reach if all V logits are as large as the largest.

    The integral is by trapezoids. The largest noisy logit spreads over at least 1 / sqrt(2 log V) = 0.2; for
    that, steps of 1/8 err by 1e-6. All is in float64, so that nothing underflows, and neither autocast nor
    TF32 touches the products.
    """
    if device.type == "mps":
        raise ValueError("perturb_max with noise = 'normal' needs float64, which MPS lacks: use --device=cpu")
    top = math.ceil(8 * (math.sqrt(2 * math.log(vocab_size)) + 4))
    y = torch.arange(top, 8 * LOW - 1, -1, dtype=torch.float64, device=device) / 8
    x = y + torch.arange(BINS, dtype=torch.float64, device=device)[:, None] / PER
    log_F = torch.special.log_ndtr(x)
    h = log_hazard(x).exp()
    d1 = -h * (x + h)  # h'
    d2 = -d1 * (x + 2 * h) - h  # h''
    return y, torch.cat((log_F, -h, d1 / 2, -d2 / 6)), torch.cat((h, -d1, d2 / 2)).t().contiguous()


def log_hazard(x: Tensor) -> Tensor:
    """log F'(x) / F(x)."""
    return -x.square() / 2 - math.log(2 * math.pi) / 2 - torch.special.log_ndtr(x)


def nearest(z: Tensor) -> tuple[Tensor, Tensor]:
    """The bin (N, V) nearest to each logit, and the logit's distance from its point."""
    bin = (z * -PER).round_().clamp_(max=BINS - 1)
    return bin.long(), bin.div_(PER).add_(z)


def log_product(bin: Tensor, d: Tensor, table: Tensor) -> Tensor:
    """sum_v log F(y - z_v) (N, Q), float64."""
    sums, power = d.new_zeros(len(d), 4, BINS), torch.ones_like(d)
    for i in range(4):
        sums[:, i].scatter_add_(1, bin, power)
        power.mul_(d)
    return sums.double().flatten(1) @ table


def series(coefficients: Tensor, bin: Tensor, d: Tensor) -> Tensor:
    """c_0 + c_1 d + c_2 d^2 (N, V), with the coefficients c (N, 3, BINS) of each logit's bin."""
    c0, c1, c2 = coefficients.to(d.dtype).unbind(1)
    return c2.gather(1, bin).mul_(d).add_(c1.gather(1, bin)).mul_(d).add_(c0.gather(1, bin))


@with_gradient
def normal_cross_entropy(z: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
    """-log p_t (N,), see `PerturbMax`.

    Let a(y) be the density that the largest noisy logit is t's and equals y. The gradient is E_a[h(y - z_j)]
    for j != t; over all j it sums to 0. As the series of h is the derivative of that of log F, this is the
    gradient of the loss as it is computed.
    """
    y, log_F, h = normal_tables(z.shape[1], z.device)
    z = z - z.amax(1, keepdim=True)
    z_t = at(z, token)[:, None].double()
    bin, d = nearest(z.clamp_(min=FLOOR))
    a = log_product(bin, d, log_F) + log_hazard(y - z_t)
    mean_h = F.hardshrink(a.softmax(1) @ h, 1e-30)  # products with denormals are slow
    grad = series(mean_h.unflatten(1, (3, BINS)), bin, d)
    grad = add_at(grad, token, -at(grad, token))
    return (math.log(8) - a.logsumexp(1)).to(z.dtype), add_at(grad, token, -grad.sum(1))


def normal_log_probs(z: Tensor) -> Tensor:
    """log p (N, V). Logits below FLOOR take the series at FLOOR.

    log p is concave, and falls as something between -z^2 / 4 and -z^2 / 2.
    """
    y, log_F, h = normal_tables(z.shape[1], z.device)
    z = z - z.amax(1, keepdim=True)
    bin, d = nearest(z)
    log_G = log_product(bin, d.clamp(min=-1), log_F)
    # the Taylor coefficients of p at each bin, but for a factor, and from them those of log p
    p, p1, p2 = (log_G.softmax(1) @ h).unflatten(1, (3, BINS)).unbind(1)
    log_factor = log_G.logsumexp(1, keepdim=True) - math.log(8)
    slope = p1 / p
    curve = p2 / p - slope.square() / 2
    log_p = series(torch.stack((p.log() + log_factor, slope, curve), 1), bin, d)
    return log_p.log_softmax(1)  # its sum is 1 but for rounding


# -----------------------------------------------------------------------------
# Exponential noise: 1 - F(x) = e^(-x) for x > 0, and logits are relative to the row's largest.
#
# With q = e^z and s = e^(-y), F(y - z) = 1 - s q and p_t = q_t int_0^1 prod_{j != t} (1 - s q_j) ds: the
# integral of a polynomial in s.


def sum_log1m(q: Tensor) -> Tensor:
    """sum_v log(1 - q_v) (N,), for q not near 1.

    Logarithms are slow, so this takes one logarithm for the product of eight factors. It multiplies two by
    (1 - a)(1 - b) = 1 - (a + b - ab), which keeps all digits of a small q.
    """
    n = q.shape[1] // 8
    folded, rest = q[:, : 8 * n].unflatten(1, (8, n)), q[:, 8 * n :]
    for _ in range(3):
        a, b = folded.chunk(2, dim=1)
        folded = (a + b).addcmul_(a, b, value=-1)
    return folded[:, 0].neg().log1p().sum(1) + rest.neg().log1p().sum(1)


def exponential_points(z: Tensor) -> tuple[Tensor, list[Tensor], Tensor]:
    """q (N, V), the Q points s, each (N, 1), and log(weight of s) + sum_v log(1 - s q_v) (N, Q).

    The points and weights are Gauss-Legendre's, which is exact up to V = 32. The product of the 1 - s q_v
    falls faster than e^(-s sum_j q_j), so no point lies where that is below e^(-30).
    """
    # smaller q add nothing, and their products would be denormals, which are slow
    q = z.clamp(min=-40).exp()
    nodes, weights = np.polynomial.legendre.leggauss(16)
    end = (30 / q.sum(1, keepdim=True)).clamp(max=1)
    points = [end * (1 + x) / 2 for x in nodes.tolist()]
    log_weights = [(end * (w / 2)).log() for w in weights.tolist()]
    columns = [log_w + sum_log1m(s * q)[:, None] for s, log_w in zip(points, log_weights)]
    return q, points, torch.cat(columns, 1)


@with_gradient
def exponential_cross_entropy(z: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
    """As `normal_cross_entropy`, with the hazard s q / (1 - s q)."""
    z = z - z.amax(1, keepdim=True)
    q, points, log_w = exponential_points(z)
    q_t, grad = at(q, token)[:, None], torch.zeros_like(z)
    a = log_w - torch.cat([(s * -q_t).log1p() for s in points], 1)
    for s, w in zip(points, a.softmax(1).split(1, dim=1)):
        if (w > 1e-9).any():
            x = s * q
            grad.addcmul_(x.div_(1 - x), w)
    grad = add_at(grad, token, -at(grad, token))
    return -(at(z, token) + a.logsumexp(1)), add_at(grad, token, -grad.sum(1))


def exponential_log_probs(z: Tensor) -> Tensor:
    z = z - z.amax(1, keepdim=True)
    q, points, log_w = exponential_points(z)
    total = sum(w / (1 - s * q) for s, w in zip(points, log_w.softmax(1).split(1, dim=1)))
    return (z + total.log()).log_softmax(1)  # the quadrature's sum is 1 but for its error


# -----------------------------------------------------------------------------


def gumbel_log_probs(z: Tensor) -> Tensor:
    return z.log_softmax(1)


NOISES = {
    "gumbel": (cross_entropy, gumbel_log_probs),
    "normal": (normal_cross_entropy, normal_log_probs),
    "exponential": (exponential_cross_entropy, exponential_log_probs),
}


class PerturbMax(Head):
    """p_i = P[argmax_j (z_j + eps_j) = i] with independent noise eps of distribution function F; L = -log
    p_t.

    p_i = E_eps[prod_{j != i} F(z_i - z_j + eps)]. With y = z_i + eps, the largest noisy logit, and the hazard
    h = F'/F, that is the integral of h(y - z_i) prod_j F(y - z_j) dy. The product is the same for all i, so
    all p_i together take O(V Q) for Q points y. `noise`:

    "gumbel"       is softmax exactly
    "normal"       bins the logits: O(V) and two small matrix products, which pays from V of some hundreds on.
                   log p errs by up to 3e-5, and p below 1e-20 is rough
    "exponential"  is permute-and-flip, with Q = 16. Its closed form sums over 2^V subsets; here the same
                   polynomial is integrated

    No probability is 0.
    Source: Su's survey of softmax and its alternatives, 2024 (spaces.ac.cn/archives/10145), on perturb max;
    exponential noise: McKenna & Sheldon 2020, arXiv 2010.12603; Ding et al. 2021, arXiv 2105.07260.
    """

    def __init__(self, vocab_size: int, noise: str = "normal"):
        super().__init__(vocab_size)
        if noise not in NOISES:
            raise ValueError(f"noise = {noise!r}: use {', '.join(map(repr, NOISES))}")
        self.noise = noise

    def loss(self, logits: Tensor, targets: Targets) -> Tensor:
        return NOISES[self.noise][0](logits, targets.token)

    def log_probs(self, logits: Tensor) -> Tensor:
        return NOISES[self.noise][1](logits)
