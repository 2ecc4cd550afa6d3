"""Cuts of a next-token distribution: pure functions. Nothing else of this project is imported.

p (N, V) are probabilities at their temperature. They need not sum to 1, and are 0 where an earlier cut took
the token away. A cut says which tokens stay, (N, V), at least one in each row.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor


def top_k(p: Tensor, k: int) -> Tensor:
    """The k most probable tokens; ties with the last one stay. Source: Fan et al. 2018, arXiv 1805.04833."""
    return p >= p.topk(min(k, p.shape[1])).values[:, -1:]


def top_p(p: Tensor, mass: float) -> Tensor:
    """The smallest set of at least this mass. Source: Holtzman et al. 2020, arXiv 1904.09751, eq. 2."""
    ordered, at = p.sort(descending=True, stable=True)
    ordered = ordered / ordered.sum(1, keepdim=True)
    beyond = ordered.cumsum(1) - ordered >= mass  # the token that crosses it stays
    return ~torch.zeros_like(beyond).scatter_(1, at, beyond)


def min_p(p: Tensor, share: float) -> Tensor:
    """p >= share max p. Source: Nguyen et al. 2024, arXiv 2407.01082."""
    return p >= share * p.amax(1, keepdim=True)


def typical_p(p: Tensor, mass: float) -> Tensor:
    """The smallest set of at least this mass by |-log p - H(p)|, lowest first; ties with the last one stay.
    The most probable token may go. Source: Meister et al. 2022, arXiv 2202.00666."""
    p = p / p.sum(1, keepdim=True)
    distance = (p.log() + entropy(p)).abs()
    ordered, at = distance.sort(stable=True)
    last = (p.gather(1, at).cumsum(1) < mass).sum(1, keepdim=True)
    return distance <= ordered.gather(1, last.clamp(max=p.shape[1] - 1))


def epsilon(p: Tensor, least: float) -> Tensor:
    """p >= least; else the most probable token. Source: Hewitt et al. 2022, arXiv 2210.15191."""
    p = p / p.sum(1, keepdim=True)
    return p >= p.amax(1, keepdim=True).clamp(max=least)


def eta(p: Tensor, least: float) -> Tensor:
    """p >= min(least, sqrt(least) e^-H(p)). Source: Hewitt et al. 2022, arXiv 2210.15191."""
    p = p / p.sum(1, keepdim=True)
    bound = (math.sqrt(least) * torch.exp(-entropy(p))).clamp(max=least)
    return p >= torch.minimum(bound, p.amax(1, keepdim=True))  # max p >= e^-H, but for rounding


def top_a(p: Tensor, a: float) -> Tensor:
    """p >= a (max p)^2. Source: RWKV-LM and KoboldAI, which have it without a paper."""
    p = p / p.sum(1, keepdim=True)
    return p >= a * p.amax(1, keepdim=True).square()


def top_n_sigma(log_p: Tensor, n: float) -> Tensor:
    """log p >= max log p - n sigma: sigma is their standard deviation over the tokens of p > 0, with V - 1.

    The paper has logits, from which log p differs by a constant, so max - sigma cuts the same tokens. A
    temperature scales both sides: the cut is the same at any. Source: Tang et al. 2024, arXiv 2411.07641.
    """
    known = log_p > -torch.inf
    count = known.sum(1, keepdim=True)
    mean = log_p.masked_fill(~known, 0).sum(1, keepdim=True) / count
    variance = (log_p - mean).masked_fill(~known, 0).square().sum(1, keepdim=True) / (count - 1).clamp(min=1)
    return log_p >= log_p.amax(1, keepdim=True) - n * variance.sqrt()


def min_k(log_p: Tensor, tau: float) -> Tensor:
    """The k most probable of the tokens of p > 0, which are 1 to n by falling log p; ties with the k-th stay.

    k = max(i, floor(tau / R)), i the first of largest (log p_i - log p_i+1) / (R i), R = log p_1 - log p_n.

    The paper has logits. log p differs from them by a constant, which cancels in each difference. A
    temperature does not move i; tau / R, which is for flat distributions, has that of log p. Source: Ding et
    al. 2026, arXiv 2604.11012.
    """
    ordered = log_p.sort(descending=True).values
    last = ordered.gather(1, (ordered > -torch.inf).sum(1, keepdim=True) - 1)
    drops = -torch.maximum(ordered, last).diff(append=last)  # none after the last token of p > 0
    cliff = (drops / torch.arange(1, drops.shape[1] + 1, device=drops.device)).argmax(1, keepdim=True) + 1
    flat = (tau / (ordered[:, :1] - last)).floor()  # inf where all are equal
    k = torch.maximum(cliff, flat.clamp(max=drops.shape[1]).long())
    return log_p >= ordered.gather(1, k - 1)


def entropy(p: Tensor) -> Tensor:
    """H(p) (N, 1) in nats."""
    return torch.special.entr(p).sum(1, keepdim=True)


# of log p before the temperature; then of p at its temperature, in transformers' order. Each applies to what
# the one before left
COLD_CUTS: dict[str, Callable[..., Tensor]] = {"top_n_sigma": top_n_sigma, "min_k": min_k}
CUTS: dict[str, Callable[..., Tensor]] = {
    "top_k": top_k,
    "top_p": top_p,
    "min_p": min_p,
    "typical_p": typical_p,
    "epsilon": epsilon,
    "eta": eta,
    "top_a": top_a,
}
