"""Perturb-max: the token is the argmax of noisy logits."""

import functools
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Head, Targets, add_at, at, cross_entropy, finds_gradient, sum_log1m

# -----------------------------------------------------------------------------
# Normal noise, F that of N(0, 1). Logits are relative to the row's largest. What a row needs, log F(y - z_v) and the hazard h(y - z_v), are smooth functions of
# the scalar z_v: they are tabulated once at BINS values of z in [FLOOR, 0], 1 / PER apart, and each logit takes the Taylor series at the value nearest to it.
# A sum over the row then needs only the sums of the distances' powers in each bin: a row is O(V), and two products with a table.
PER, FLOOR, LOW = (
    32,
    -16,
    -10,
)  # the points y go down to LOW, where p_t = 1e-20; logits below FLOOR weigh nothing, 1 - F(LOW - FLOOR) = 1e-9
BINS = 1 - FLOOR * PER


@functools.lru_cache(maxsize=8)
def normal_tables(vocab_size: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """The points y (Q), falling from where V logits as large as the largest reach, and at each bin's z the Taylor coefficients in z, for each y:
    of log F(y - z) (4 BINS, Q), up to the third; of h(y - z) (Q, 3 BINS).

    Trapezoids: the largest noisy logit spreads over 1 / sqrt(2 log V) = 0.2 at least, for which steps of 1/8 err by 1e-6. In float64, so that nothing
    underflows, and neither autocast nor TF32 touches the products.
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


@finds_gradient
def normal_cross_entropy(z: Tensor, token: Tensor) -> Tensor:
    """-log p_t, see `PerturbMax`. Gradient: with the density a(y) that the largest noisy logit is t's and equals y, d/dz_j = E_a[h(y - z_j)] for j != t; over
    all j it sums to 0. As series it is the derivative of the loss as computed."""
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
    """log p (N, V). Below FLOOR its series there goes on: log p is concave, and falls as -z^2 / 4 to -z^2 / 2."""
    y, log_F, h = normal_tables(z.shape[1], z.device)
    z = z - z.amax(1, keepdim=True)
    bin, d = nearest(z)
    log_G = log_product(bin, d.clamp(min=-1), log_F)
    p, p1, p2 = (log_G.softmax(1) @ h).unflatten(1, (3, BINS)).unbind(1)  # but for a factor
    slope, log_factor = p1 / p, log_G.logsumexp(1, keepdim=True) - math.log(8)
    return series(
        torch.stack((p.log() + log_factor, slope, p2 / p - slope.square() / 2), 1), bin, d
    ).log_softmax(1)  # the sum is 1 but for rounding


# -----------------------------------------------------------------------------
# Exponential noise: 1 - F(x) = e^(-x) for x > 0. Logits are relative to the row's largest; with q = e^z and s = e^(-y), F(y - z) = 1 - s q and
# p_t = q_t int_0^1 prod_{j != t} (1 - s q_j) ds, a polynomial in s.


def exponential_points(z: Tensor) -> tuple[Tensor, list[Tensor], Tensor]:
    """q (N, V), the points s (N, 1), and the logs of their weights times prod_v (1 - s q_v) (N, Q). Gauss-Legendre: exact up to V = 32. The product falls
    faster than e^(-s sum_j q_j), so that is where the points go."""
    q = z.clamp(min=-40).exp()  # smaller ones are nothing, and slow denormals once multiplied
    nodes, weights = np.polynomial.legendre.leggauss(16)
    end = (30 / q.sum(1, keepdim=True)).clamp(max=1)
    points = [end * (1 + x) / 2 for x in nodes.tolist()]
    return (
        q,
        points,
        torch.cat(
            [(end * (w / 2)).log() + sum_log1m(s * q)[:, None] for s, w in zip(points, weights.tolist())], 1
        ),
    )


@finds_gradient
def exponential_cross_entropy(z: Tensor, token: Tensor) -> Tensor:
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

NOISES = {
    "gumbel": (cross_entropy, lambda z: z.log_softmax(1)),
    "normal": (normal_cross_entropy, normal_log_probs),
    "exponential": (exponential_cross_entropy, exponential_log_probs),
}


class PerturbMax(Head):
    """p_i = P[argmax_j (z_j + eps_j) = i] with independent noise eps of distribution function F; L = -log p_t.

    p_i = E_eps[prod_{j != i} F(z_i - z_j + eps)]. In y = z_i + eps, the largest noisy logit, that is the integral of h(y - z_i) prod_j F(y - z_j) dy
    with the hazard h = F'/F: its product is that of the whole row, so all p_i together take O(V Q) for Q points y. `noise`: "gumbel" is softmax exactly;
    "normal" bins the logits, for O(V) and two small matrix products, which pays from V of some hundreds; log p errs by up to 3e-5;
    "exponential", with Q = 16, is permute-and-flip, whose closed form sums over 2^V subsets, and the integral is of the same polynomial. No probability is 0;
    with normal noise those below 1e-20 are rough. Source: Su's survey of softmax and its alternatives, 2024 (spaces.ac.cn/archives/10145), on perturb max;
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
