"""Perturb-max: the token is the argmax of noisy logits."""

import math

import numpy as np
import torch
from torch import Tensor

from .base import Head, Targets, add_at, at, cross_entropy, finds_gradient, sum_log1m

LOG2E = math.log2(math.e)

# A noise is its distribution: 1 - F and F' at x (no farther than `far`: beyond, products of them are slow denormals, and nothing), log F' at any x; and the
# points (N, 1), falling, at which the largest noisy logit is looked for, with the logs of their weights. Logits are relative to the row's largest.


class Normal:
    """N(0, 1)."""
    far = 8

    @staticmethod
    def tail(x: Tensor) -> Tensor:
        return torch.erfc(x * math.sqrt(0.5)) / 2

    @staticmethod
    def density(x: Tensor) -> Tensor:
        return torch.exp2(x.square() * (-LOG2E / 2)) / math.sqrt(2 * math.pi)

    @staticmethod
    def log_density(x: Tensor) -> Tensor:
        return -x.square() / 2 - math.log(2 * math.pi) / 2

    @staticmethod
    def points(z: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Trapezoids, from where V logits as large as the largest reach down to 7 below it. The largest noisy logit spreads over
        1 / sqrt(2 log V) = 0.2 at least, for which steps of 1/4 err by 5e-4, relatively; where logits differ, by 1e-5."""
        step, end = 1 / 4, math.sqrt(2 * math.log(z.shape[1])) + 4
        return [(z.new_full((len(z), 1), y), z.new_full((len(z), 1), math.log(step))) for y in np.arange(end, -7, -step).tolist()]


class Exponential:
    """Exp(1), density e^(-x) for x > 0."""
    far = 40

    @staticmethod
    def tail(x: Tensor) -> Tensor:
        return torch.exp2(x * -LOG2E)

    density = tail

    @staticmethod
    def log_density(x: Tensor) -> Tensor:
        return -x

    @staticmethod
    def points(z: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Gauss-Legendre in s = e^(-y), in which the integrand is a polynomial: exact up to V = 32. It falls faster than e^(-s sum_j e^(z_j))."""
        nodes, weights = np.polynomial.legendre.leggauss(16)
        end = (30 / z.exp().sum(1, keepdim=True)).clamp(max=1)
        return [(-(end * (1 + s) / 2).log(), torch.full_like(end, math.log(w) - math.log1p(s))) for s, w in zip(nodes.tolist(), weights.tolist())]


def distribution(noise: type, y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """F(x) (N, V) and sum_v log F(x_v) (N, 1) at x = y - z. The sum needs the digits of 1 - F; for y < 0 some F are small, and need theirs."""
    if noise is Normal and y.amin() < 0:
        F = noise.tail(-x)
        return F, F.log().sum(1, keepdim=True)
    tail = noise.tail(x)
    return 1 - tail, sum_log1m(tail)[:, None]


@finds_gradient
def perturb_cross_entropy(z: Tensor, token: Tensor, noise: type) -> Tensor:
    """-log p_t, see `PerturbMax`. Gradient: with the density a(y) that the largest noisy logit is t's and equals y, d/dz_j = E_a[h(y - z_j)] for j != t; over
    all j it sums to 0."""
    z = z - z.amax(1, keepdim=True)
    z_t, grad = at(z, token)[:, None], torch.zeros_like(z)
    best, total = z.new_full((len(z), 1), -math.inf), z.new_zeros(len(z), 1)
    for y, log_w in noise.points(z):
        x = (y - z).clamp_(max=noise.far)
        F, log_G = distribution(noise, y, x)
        a = log_w + log_G + noise.log_density(y - z_t) - at(F, token)[:, None].log()
        if (a < best - 40).all():  # log-concave: what comes is smaller still
            break
        old, best = best, torch.maximum(best, a)
        keep, new = (old - best).exp(), (a - best).exp()
        total = total * keep + new
        grad = torch.addcmul(grad.mul_(keep), noise.density(x).div_(F), new)
    grad /= total
    grad = add_at(grad, token, -at(grad, token))
    return -(best + total.log()).squeeze(1), add_at(grad, token, -grad.sum(1))


class PerturbMax(Head):
    """p_i = P[argmax_j (z_j + eps_j) = i] with independent noise eps of distribution function F; L = -log p_t.

    p_i = E_eps[prod_{j != i} F(z_i - z_j + eps)]. In y = z_i + eps, the largest noisy logit, that is the integral of h(y - z_i) prod_j F(y - z_j) dy
    with the hazard h = F'/F: its product is that of the whole row, so all p_i together take O(V Q) for Q points y. `noise`: "gumbel" is softmax exactly;
    "normal" takes Q about 35; "exponential", with Q = 16, is permute-and-flip, whose closed form sums over 2^V subsets, and the integral is of the same
    polynomial. No probability is 0; with normal noise those below 1e-20 are rough. Source: Su's survey of softmax and its alternatives, 2024
    (spaces.ac.cn/archives/10145), on perturb max; exponential noise: McKenna & Sheldon 2020, arXiv 2010.12603; Ding et al. 2021, arXiv 2105.07260.
    """

    def __init__(self, vocab_size: int, noise: str = "normal"):
        super().__init__(vocab_size)
        known = {"gumbel": None, "normal": Normal, "exponential": Exponential}
        if noise not in known:
            raise ValueError(f"noise = {noise!r}: use {', '.join(map(repr, known))}")
        self.noise, self.kind = noise, known[noise]

    def loss(self, logits: Tensor, targets: Targets) -> Tensor:
        if self.kind is None:
            return cross_entropy(logits, targets.token)
        return perturb_cross_entropy(logits, targets.token, self.kind)

    def log_probs(self, logits: Tensor) -> Tensor:
        if self.kind is None:
            return logits.log_softmax(1)
        noise, z, total = self.kind, logits - logits.amax(1, keepdim=True), None
        for y, log_w in noise.points(z):
            F, log_G = distribution(noise, y, (y - z).clamp_(max=noise.far))
            if (log_G < -60).all():
                break
            term = log_w + log_G + noise.log_density(y - z) - F.log()
            total = term if total is None else torch.logaddexp(total, term)
        return total.log_softmax(1)  # the quadrature's sum is 1 but for its error
