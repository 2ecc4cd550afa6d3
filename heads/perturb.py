"""Perturb-max: the token is the argmax of noisy logits."""

import functools
import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Gradient, Head, Targets, add_at, at, check_choice, cross_entropy_parts

# -----------------------------------------------------------------------------
# Normal noise: F is the distribution function of N(0, 1), and logits are relative to the row's largest.
#
# A row needs log F(y - z_v) and its derivative in z_v, minus the hazard, which are smooth functions of the
# scalar z_v. In each cell of z, 1 / 8 wide, log F(y - z) is a polynomial of degree DEGREE about the cell's
# centre, tabulated once for each y. Bins divide the cells, and each logit takes the bin nearest to it. A sum
# over the row then needs only the sums, in each bin, of the powers of the logits' distances from it; a bin's
# sums become a cell's exactly, and a cell's polynomial becomes a bin's. So a row costs O(V) and two products
# with a small table.

PER = 128  # bins in a unit of z
FINE = 16  # bins in a cell
DEGREE = 8
# Two depths: the lowest logit and the lowest point y. What is lower weighs nothing: 1 - F(-10 + 16) = 1e-9
SHALLOW, DEEP = (-16, -10), (-26, -19)
# A lower logit has p < 2e-20, for which SHALLOW's points are too high: log p takes DEEP, then `tail`; a loss
# takes `tail`
TAIL = -13


@functools.lru_cache(maxsize=8)
def normal_tables(
    vocab_size: int, device: torch.device, depth: tuple[int, int] = SHALLOW
) -> tuple[Tensor, Tensor, Tensor]:
    """The points y (Q,) of the integral, the coefficients of log F in z (cells (DEGREE + 1), Q) for each
    cell and y, and what moves a polynomial from a cell to its bins (4, FINE, DEGREE + 1).

    The points fall from where the noisy logits reach if all V logits are as large as the largest. The
    integral is by trapezoids. The largest noisy logit spreads over at least 1 / sqrt(2 log V) = 0.2; for
    that, steps of 1/8 err by 1e-6. All is in float64, so that nothing underflows, and neither autocast nor
    TF32 touches the products.
    """
    top = math.ceil(8 * (math.sqrt(2 * math.log(vocab_size)) + 4))
    floor, low = depth
    y = torch.arange(top, 8 * low - 1, -1, dtype=torch.float64, device=device) / 8
    cells = -(-(1 - floor * PER) // FINE)
    middle = (FINE - 1) / 2
    x = y + (torch.arange(cells, dtype=torch.float64, device=device)[:, None] * FINE + middle) / PER
    h = [log_hazard(x).exp()]  # the Taylor coefficients of the hazard at x, by h' = -h (x + h)
    for n in range(DEGREE - 1):
        plus = [h[0] + x, *(c + (m == 1) for m, c in enumerate(h[1:], 1))]
        h.append(-torch.stack([h[i] * plus[n - i] for i in range(n + 1)]).sum(0) / (n + 1))
    log_F = [torch.special.log_ndtr(x), *(c * (-1) ** (n + 1) / (n + 1) for n, c in enumerate(h))]
    # (delta + d)^k = sum_j C(k, j) delta^(k - j) d^j, with delta from the cell's centre to a bin's point
    delta = (middle - torch.arange(FINE, dtype=torch.float64, device=device)) / PER
    powers = [delta ** max(k, 0) for k in range(-3, DEGREE + 1)]
    moved = [
        torch.stack([math.comb(k, j) * powers[k - j + 3] for k in range(DEGREE + 1)], 1) for j in range(4)
    ]
    return y, torch.stack(log_F, 1).flatten(0, 1), torch.stack(moved)


def log_hazard(x: Tensor) -> Tensor:
    """log F'(x) / F(x)."""
    return -x.square() / 2 - math.log(2 * math.pi) / 2 - torch.special.log_ndtr(x)


def nearest_bin(z: Tensor) -> tuple[Tensor, Tensor]:
    """The bin (N, V) nearest to each logit, and, in place of z, the logit's distance from its point."""
    bin = (z * -PER).round_()
    return bin.long(), z.add_(bin, alpha=1 / PER)


def log_product(bin: Tensor, d: Tensor, log_F: Tensor, moved: Tensor) -> Tensor:
    """sum_v log F(y - z_v) (N, Q), float64, of logits in `bin` at the distance d from its point (N, V)."""
    cells = len(log_F) // (DEGREE + 1)
    sums, moved = d.new_zeros(3, len(d), cells * FINE), moved.to(d.dtype)
    for j, power in enumerate((torch.ones_like(d), d, d.square())):
        sums[j].scatter_add_(1, bin, power)
    of_cells = sum(s.unflatten(1, (cells, FINE)) @ m for s, m in zip(sums, moved))
    return of_cells.flatten(1).double() @ log_F


def hazards(
    density: Tensor, log_F: Tensor, moved: Tensor, terms: int, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """The mean under `density` (N, Q) of the hazard h(y - z): the first `terms` coefficients, each (N, bins),
    of its series about the point of each bin. It is minus the derivative of log F's polynomial, so the
    gradient is that of the loss as computed."""
    mean = (density @ log_F.t()).unflatten(1, (-1, DEGREE + 1))
    if dtype != torch.float64:
        mean, moved = F.hardshrink(mean, 1e-30).to(dtype), moved.to(dtype)  # products with denormals are slow
    return [(mean @ (-(j + 1) * moved[j + 1]).t()).flatten(1) for j in range(terms)]


def normal_gradient(z: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
    """-log p_t (N,), see `PerturbMax`, and its gradient (N, V), the latter in the place of z.

    Let a(y) be the density that the largest noisy logit is t's and equals y. The gradient is E_a[h(y - z_j)]
    for j != t; over all j it sums to 0.
    """
    y, log_F, moved = normal_tables(z.shape[1], z.device)
    z.sub_(z.amax(1, keepdim=True))
    z_t = at(z, token)[:, None].double()
    far = (z_t[:, 0] < TAIL).nonzero()[:, 0]
    rows = z[far].double()
    bin, d = nearest_bin(z.clamp_(min=SHALLOW[0]))
    a = log_product(bin, d, log_F, moved) + log_hazard(y - z_t)
    c0, c1 = hazards(a.softmax(1), log_F, moved, 2, z.dtype)
    grad = d.mul_(c1.gather(1, bin)).add_(c0.gather(1, bin))
    loss = math.log(8) - a.logsumexp(1)
    if len(far):
        x, a = tail(rows, z_t[far, 0])
        loss[far] = -a.logsumexp(1)
        parts = zip(a.softmax(1).split(1, 1), x.split(1, 1))
        grad[far] = sum(w * log_hazard(x_q - rows).exp() for w, x_q in parts).to(grad.dtype)
    grad = add_at(grad, token, -at(grad, token))
    return loss.to(z.dtype), add_at(grad, token, -grad.sum(1))


def tail(z: Tensor, z_t: Tensor) -> tuple[Tensor, Tensor]:
    """For a logit z_t (n,) far below the largest of z (n, V), which is 0: points x (n, 9) of the integral of
    F'(x - z_t) prod_v F(x - z_v), and the logarithms of their shares, whose sum is p_t. In float64.

    The integrand is log-concave. Newton's method finds its largest point from the left, where its slope z_t -
    x + sum_v h(x - z_v) is convex; the points are Gauss and Hermite's for the curvature there. The product
    has t's own factor, which is 1: x - z_t is 6 at least.
    """
    x, z = z_t[:, None], z.clamp(min=-1e30)  # a banned token, whose hazard is to be 0
    for _ in range(100):
        h = log_hazard(x - z).exp()
        slope = 1 + (h * (x - z + h)).sum(1, keepdim=True)  # minus the curvature
        step = (z_t[:, None] - x + h.sum(1, keepdim=True)) / slope
        x = x + step
        if (step.abs() < 1e-9 * (1 + x.abs())).all():
            break
    nodes, weights = (torch.from_numpy(a).to(z) for a in np.polynomial.hermite.hermgauss(9))
    width = (2 / slope).sqrt()
    x = x + width * nodes
    product = torch.cat([torch.special.log_ndtr(p - z).sum(1, keepdim=True) for p in x.split(1, 1)], 1)
    density = -(x - z_t[:, None]).square() / 2 - math.log(2 * math.pi) / 2
    return x, product + density + (weights.log() + nodes.square()) + width.log()


KNOTS = 12


def log_p_of_tail(z: Tensor) -> Tensor:
    """log p (n, V) where a logit z is below DEEP: cubic between KNOTS logits of each row, whose log p and
    slope are `tail`'s. The largest of z is 0; float64."""
    top = DEEP[0]
    lowest = z.masked_fill(z == -math.inf, 0).amin(1).clamp(max=1.1 * top)
    share = torch.linspace(0, 1, KNOTS, dtype=z.dtype, device=z.device)
    at_knots = top * (lowest / top)[:, None] ** share  # (n, KNOTS), from the top down
    log_p, slope = torch.empty_like(at_knots), torch.empty_like(at_knots)
    for k, knot in enumerate(at_knots.unbind(1)):
        x, a = tail(z, knot)
        log_p[:, k] = a.logsumexp(1)
        slope[:, k] = (a.softmax(1) * x).sum(1) - knot
    u = ((z / top).clamp(min=1).log() / (lowest / top)[:, None].log() * (KNOTS - 1)).clamp(max=KNOTS - 1)
    left = u.floor().clamp(max=KNOTS - 2).long()
    y0, y1 = at_knots.gather(1, left), at_knots.gather(1, left + 1)
    p0, p1, s0, s1 = (v.gather(1, i) for v in (log_p, slope) for i in (left, left + 1))
    h = y1 - y0
    t = ((z - y0) / h).clamp(0, 1)
    cubic = (1 + 2 * t) * (1 - t) ** 2 * p0 + t**2 * (3 - 2 * t) * p1
    return cubic + h * t * (1 - t) * ((1 - t) * s0 - t * s1)


def normal_log_probs(z: Tensor) -> Tensor:
    """log p (N, V)."""
    z = z - z.amax(1, keepdim=True)
    lowest = z.masked_fill(z == -math.inf, 0).amin(1)
    deep, tails = ((lowest < edge).nonzero()[:, 0] for edge in (TAIL, DEEP[0]))
    log_p = log_p_of_bins(z, SHALLOW)
    if len(deep):
        log_p[deep] = log_p[deep].where(z[deep] >= TAIL, log_p_of_bins(z[deep], DEEP))
    if len(tails):
        far = log_p_of_tail(z[tails].double()).to(z.dtype)
        log_p[tails] = log_p[tails].where(z[tails] >= DEEP[0], far)
    return log_p.masked_fill_(z == -math.inf, -math.inf).log_softmax(1)  # its sum is 1 but for rounding


def log_p_of_bins(z: Tensor, depth: tuple[int, int]) -> Tensor:
    """log p (N, V) of logits down to the depth; the largest of each row is 0."""
    y, log_F, moved = normal_tables(z.shape[1], z.device, depth)
    bin, d = nearest_bin(z.clamp(min=depth[0]))
    log_G = log_product(bin, d, log_F, moved)
    # the Taylor coefficients of p at each bin, but for a factor, and from them those of log p
    p, p1, p2 = hazards(log_G.softmax(1), log_F, moved, 3)
    log_factor = log_G.logsumexp(1, keepdim=True) - math.log(8)
    slope = p1 / p
    curve = p2 / p - slope.square() / 2
    c0, c1, c2 = (c.to(d.dtype).gather(1, bin) for c in (p.log() + log_factor, slope, curve))
    return c2.mul_(d).add_(c1).mul_(d).add_(c0)


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


def exponential_gradient(z: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
    """As `normal_gradient`, with the hazard s q / (1 - s q)."""
    z.sub_(z.amax(1, keepdim=True))
    q, points, log_w = exponential_points(z)
    z_t, q_t, grad = at(z, token), at(q, token)[:, None], z.zero_()
    a = log_w - torch.cat([(s * -q_t).log1p() for s in points], 1)
    for s, w in zip(points, a.softmax(1).split(1, dim=1)):
        if (w > 1e-9).any():
            x = s * q
            grad.addcmul_(x.div_(1 - x), w)
    grad = add_at(grad, token, -at(grad, token))
    return -(z_t + a.logsumexp(1)), add_at(grad, token, -grad.sum(1))


def exponential_log_probs(z: Tensor) -> Tensor:
    """log p (N, V)."""
    z = z - z.amax(1, keepdim=True)
    q, points, log_w = exponential_points(z)
    total = sum(w / (1 - s * q) for s, w in zip(points, log_w.softmax(1).split(1, dim=1)))
    return (z + total.log()).log_softmax(1)  # the quadrature's sum is 1 but for its error


# -----------------------------------------------------------------------------


def gumbel_gradient(z: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
    loss, gradient, at_token = cross_entropy_parts(z, token)
    return loss, gradient.scatter_(1, token[:, None], at_token)


# noise -> (z, token) -> loss and gradient, as `normal_gradient`; and z -> log p
NOISES: dict[str, tuple[Callable[..., tuple[Tensor, Tensor]], Callable[[Tensor], Tensor]]] = {
    "gumbel": (gumbel_gradient, functools.partial(F.log_softmax, dim=1)),
    "normal": (normal_gradient, normal_log_probs),
    "exponential": (exponential_gradient, exponential_log_probs),
}


class PerturbMax(Head):
    """p_i = P[argmax_j (z_j + eps_j) = i] with independent noise eps of distribution function F; L = -log
    p_t.

    p_i = E_eps[prod_{j != i} F(z_i - z_j + eps)]. With y = z_i + eps, the largest noisy logit, and the hazard
    h = F'/F, that is the integral of h(y - z_i) prod_j F(y - z_j) dy. The product is the same for all i, so
    all p_i together take O(V Q) for Q points y. `noise`:

    "gumbel"       is softmax exactly
    "normal"       bins the logits: O(V) and two small matrix products, which pays from V of some hundreds on.
                   log p errs by up to 3e-5, below p = 1e-20 by up to a thousandth of itself
    "exponential"  is permute-and-flip, with Q = 16. Its closed form sums over 2^V subsets; here the same
                   polynomial is integrated

    No probability is 0.
    Source: Su's survey of softmax and its alternatives, 2024 (spaces.ac.cn/archives/10145), on perturb max;
    exponential noise: McKenna & Sheldon 2020, arXiv 2010.12603; Ding et al. 2021, arXiv 2105.07260.
    """

    compiles = False

    def __init__(self, vocab_size: int, noise: str = "normal"):
        super().__init__(vocab_size)
        check_choice(NOISES, noise=noise)
        self.noise = noise

    def gradient(self, logits: Tensor, targets: Targets) -> Gradient:
        loss, gradient = NOISES[self.noise][0](logits, targets.token)
        return loss, gradient, at(gradient, targets.token)[:, None]

    def log_probs(self, logits: Tensor) -> Tensor:
        return NOISES[self.noise][1](logits)
