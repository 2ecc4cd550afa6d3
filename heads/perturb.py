"""Perturb-max: the token is the argmax of noisy logits."""

import math

import numpy as np
import torch
from torch import Tensor

from .base import Head, Targets, add_at, at, finds_gradient
from .softmax import Softmax

# A noise is its distribution function F and density F', and the points (N, 1), falling, at which the largest noisy logit is looked for, with the logs of their weights.
# Logits are relative to the row's largest.


class Normal:
    """N(0, 1)."""

    @staticmethod
    def cdf(y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """F and log F at y - z. A sum of V logs needs the digits of 1 - F; float32 loses them only below the row's largest logit, where those of a small F matter."""
        if y.amin() < 0:
            F = torch.erfc((z - y) * math.sqrt(0.5)) / 2
            return F, F.log()
        tail = torch.erfc((y - z) * math.sqrt(0.5)) / -2
        return 1 + tail, tail.log1p()

    @staticmethod
    def log_density(x: Tensor) -> Tensor:
        return torch.addcmul(x.new_tensor(-math.log(2 * math.pi) / 2), x, x, value=-0.5)

    @staticmethod
    def points(z: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Trapezoids, from where V logits as large as the largest reach down to 7 below it. The largest noisy logit spreads over
        1 / sqrt(2 log V) = 0.2 at least, for which steps of 1/4 err by 5e-4, relatively; where logits differ, by 1e-5."""
        step, end = 1 / 4, math.sqrt(2 * math.log(z.shape[1])) + 4
        return [(z.new_full((len(z), 1), y), z.new_full((len(z), 1), math.log(step))) for y in np.arange(end, -7, -step).tolist()]


class Exponential:
    """Exp(1), density e^(-x) for x > 0."""

    @staticmethod
    def cdf(y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        tail = -(z - y).exp()
        return 1 + tail, tail.log1p()

    @staticmethod
    def log_density(x: Tensor) -> Tensor:
        return -x

    @staticmethod
    def points(z: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Gauss-Legendre in s = e^(-y), in which the integrand is a polynomial: exact up to V = 32. It falls faster than e^(-s sum_j e^(z_j))."""
        nodes, weights = np.polynomial.legendre.leggauss(16)
        end = (30 / z.exp().sum(1, keepdim=True)).clamp(max=1)
        return [(-(end * (1 + s) / 2).log(), torch.full_like(end, math.log(w) - math.log1p(s))) for s, w in zip(nodes.tolist(), weights.tolist())]


@finds_gradient
def perturb_cross_entropy(z: Tensor, token: Tensor, noise: type) -> Tensor:
    """-log p_t, see `PerturbMax`. With the density a(y) that the largest noisy logit is t's and is y: d/dz_j = E_a[h(y - z_j)] for j != t; the sum over all j is 0."""
    z = z - z.amax(1, keepdim=True)
    z_t, grad = at(z, token)[:, None], torch.zeros_like(z)
    best, total = z.new_full((len(z), 1), -math.inf), z.new_zeros(len(z), 1)
    for y, log_w in noise.points(z):
        F, log_F = noise.cdf(y, z)
        a = log_w + log_F.sum(1, keepdim=True) + noise.log_density(y - z_t) - at(log_F, token)[:, None]
        if (a < best - 40).all():  # log-concave: what comes is smaller still
            break
        old, best = best, torch.maximum(best, a)
        keep, new = (old - best).exp(), (a - best).exp()
        total = total * keep + new
        grad = torch.addcmul(grad.mul_(keep), noise.log_density(y - z).exp_().div_(F), new)
    grad /= total
    grad = add_at(grad, token, -at(grad, token))
    return -(best + total.log()).squeeze(1), add_at(grad, token, -grad.sum(1))


class PerturbMax(Head):
    """p_i = P[argmax_j (z_j + eps_j) = i] with independent noise eps of distribution function F; L = -log p_t.

    p_i = E_eps[prod_{j != i} F(z_i - z_j + eps)]; in y = z_i + eps, the largest noisy logit, integral of h(y - z_i) prod_j F(y - z_j) dy with the hazard h = F'/F. The product is
    that of the whole row, so all p_i take O(V Q) for Q points y. `noise`: "gumbel" is softmax exactly; "normal", Q about 30; "exponential", Q = 16, is permute-and-flip, whose closed
    form sums over 2^V subsets: the integral is of the same polynomial. Probabilities are never 0; with normal noise those of tokens more than 14 below the largest logit (1e-22) come out
    too small. Source: Su's survey, 2024 (spaces.ac.cn/archives/10145), section on perturb max; exponential noise: McKenna & Sheldon 2020, arXiv 2010.12603; Ding et al. 2021, arXiv 2105.07260.
    """

    def __init__(self, vocab_size: int, noise: str = "normal"):
        super().__init__(vocab_size)
        known = {"gumbel": None, "normal": Normal, "exponential": Exponential}
        if noise not in known:
            raise ValueError(f"noise = {noise!r}: use {', '.join(map(repr, known))}")
        self.noise, self.kind = noise, known[noise]

    def loss(self, logits: Tensor, targets: Targets) -> Tensor:
        if self.kind is None:
            return Softmax.loss(Softmax(self.vocab_size), logits, targets)
        return perturb_cross_entropy(logits, targets.token, self.kind)

    def log_probs(self, logits: Tensor) -> Tensor:
        if self.kind is None:
            return logits.log_softmax(1)
        z, total = logits - logits.amax(1, keepdim=True), None
        for y, log_w in self.kind.points(z):
            log_F = self.kind.cdf(y, z)[1]
            log_G = log_F.sum(1, keepdim=True)
            if (log_G < -50).all():
                break
            term = log_w + log_G + self.kind.log_density(y - z) - log_F
            total = term if total is None else torch.logaddexp(total, term)
        return total.log_softmax(1)  # the quadrature's sum is 1 but for its error
