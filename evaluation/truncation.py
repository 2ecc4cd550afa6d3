"""What a next-token distribution is cut to before a token is drawn from it: pure functions.

p (N, V) are probabilities at their temperature. They need not sum to 1, and are 0 where an earlier cut took
the token away. A cut says which tokens stay, (N, V), at least one in each row.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from evaluation.decoding import AS_SCORED, Decoding, Penalties
from runtime.errors import UserError


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


def entropy(p: Tensor) -> Tensor:
    """H(p) (N, 1) in nats."""
    return torch.special.entr(p).sum(1, keepdim=True)


# in the order in which they apply, each to what the one before left: transformers' order
CUTS: dict[str, Callable[..., Tensor]] = {
    "top_k": top_k,
    "top_p": top_p,
    "min_p": min_p,
    "typical_p": typical_p,
    "epsilon": epsilon,
    "eta": eta,
    "top_a": top_a,
}


def truncate(log_p: Tensor, c: Decoding) -> Tensor:
    """log p (N, V) -> probabilities (N, V) at the temperature tau, p^(1/tau) normalised, then cut.

    Top-n-sigma is first, since no temperature changes it; then the temperature; then CUTS. Temperature 0 is
    all mass on the most probable token.
    """
    if c.temperature == 0:
        return torch.zeros_like(log_p).scatter_(1, log_p.argmax(1, keepdim=True), 1.0)
    if c.top_n_sigma:
        log_p = log_p.masked_fill(~top_n_sigma(log_p, c.top_n_sigma), -torch.inf)
    # from the maximum, so that nothing overflows; below 1e-30 it is greedy in float32 anyhow
    p = torch.softmax((log_p - log_p.max(1, keepdim=True).values) / max(c.temperature, 1e-30), dim=-1)
    for name, cut in CUTS.items():
        value = getattr(c, name)
        if value != getattr(AS_SCORED, name):
            p = p.masked_fill(~cut(p, value), 0)
    return p / p.sum(1, keepdim=True)


# -----------------------------------------------------------------------------
# Penalties on what is written


def penalised(log_p: Tensor, text: Tensor, new: int, c: Penalties) -> Tensor:
    """log p (B, V), no longer normalised, after `text` (B, T), whose last `new` tokens are no prompt's.

    repetition  log p <- penalty log p, of the tokens in text (Keskar et al. 2019, arXiv 1909.05858, sec. 4.1,
                on log p in place of logits: all heads have it, and it does not depend on a constant)
    frequency, presence  log p <- log p - frequency n - presence [n > 0], n how often the new text has a token
                (the definition of OpenAI's API)
    no_repeat_ngram  log p <- -inf where n tokens of the text would come again (Paulus et al. 2017, arXiv
                1705.04304, sec. 2.5)

    UserError if no token is left.
    """
    if c.repetition_penalty != 1:
        seen = torch.zeros_like(log_p, dtype=torch.bool).scatter_(1, text, True)
        log_p = torch.where(seen, log_p * c.repetition_penalty, log_p)
    if c.frequency_penalty or c.presence_penalty:
        written = text[:, text.shape[1] - new :]
        n = torch.zeros_like(log_p).scatter_add_(1, written, torch.ones_like(written, dtype=log_p.dtype))
        log_p = log_p - c.frequency_penalty * n - c.presence_penalty * (n > 0)
    if 0 < c.no_repeat_ngram <= text.shape[1]:
        start = text[:, text.shape[1] - c.no_repeat_ngram + 1 :]
        ngrams = text.unfold(1, c.no_repeat_ngram, 1)  # (B, T - n + 1, n)
        again = (ngrams[..., :-1] == start[:, None]).all(2)
        ends = torch.where(again, ngrams[..., -1], log_p.shape[1])  # a column more for those that differ
        banned = log_p.new_zeros((len(log_p), log_p.shape[1] + 1), dtype=torch.bool).scatter_(1, ends, True)
        log_p = log_p.masked_fill(banned[:, :-1], -torch.inf)
        if not log_p.isfinite().any(1).all():
            raise UserError(
                f"no_repeat_ngram = {c.no_repeat_ngram}: each token that is left would repeat "
                f"{c.no_repeat_ngram} tokens of the text; give a larger one or a smaller --length"
            )
    return log_p
