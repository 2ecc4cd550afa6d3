"""How a token is drawn from the distribution that is scored: a temperature, then the cuts."""

from collections.abc import Callable
from dataclasses import dataclass, fields

from torch import Tensor

from common.config import Natural, NonNegative, PositiveShare, Share


@dataclass(frozen=True, kw_only=True)
class Decoding:
    # fmt: off
    # how a token is drawn: from p^(1/temperature), normalised, among the tokens that all cuts leave
    temperature: NonNegative = 1.0  # 0 is greedy
    top_k: Natural = 0              # the most probable tokens that may be drawn; 0: all
    top_p: PositiveShare = 1.0      # or the smallest set of them with this mass
    min_p: Share = 0.0              # or those with this share of the largest probability; 0: all
    # fmt: on


AS_SCORED = Decoding()


def decoding_flags(c: Decoding) -> str:
    """ "temperature 0.9, top_p 0.95": the temperature, and the cuts that are on."""
    values = {f.name: getattr(c, f.name) for f in fields(Decoding)}
    return ", ".join(f"{k} {v:g}" for k, v in values.items() if k == "temperature" or v != vars(AS_SCORED)[k])


# -----------------------------------------------------------------------------
# The cuts: p (N, V) -> which tokens stay (N, V), at least one in each row. p need not sum to 1: it is 0 where
# an earlier cut took a token away


def top_k(p: Tensor, k: int) -> Tensor:
    """The k most probable tokens; ties with the last one stay. Source: Fan et al. 2018, arXiv 1805.04833."""
    return p >= p.topk(min(k, p.shape[1])).values[:, -1:]


def top_p(p: Tensor, mass: float) -> Tensor:
    """The smallest set of at least this mass. Source: Holtzman et al. 2020, arXiv 1904.09751, eq. 2."""
    ordered, at = p.sort(descending=True, stable=True)
    ordered = ordered / ordered.sum(1, keepdim=True)
    beyond = ordered.cumsum(1) - ordered >= mass  # the token that crosses it stays
    beyond[:, 0] = False  # as does the first one, where float32 has no such small mass
    return ~beyond.new_zeros(beyond.shape).scatter_(1, at, beyond)


def min_p(p: Tensor, share: float) -> Tensor:
    """p >= share max p. Source: Nguyen et al. 2024, arXiv 2407.01082."""
    return p >= share * p.amax(1, keepdim=True)


# in transformers' order; each applies to what the one before left
CUTS: dict[str, Callable[..., Tensor]] = {"top_k": top_k, "top_p": top_p, "min_p": min_p}


def truncate(log_p: Tensor, c: Decoding) -> Tensor:
    """log p (N, V) -> probabilities (N, V) at the temperature tau, p^(1/tau) normalised, then cut.

    Temperature 0 is all mass on the most probable token.
    """
    if c.temperature == 0:
        return log_p.new_zeros(log_p.shape).scatter_(1, log_p.argmax(1, keepdim=True), 1.0)
    # from the maximum, so that nothing overflows; below 1e-30 it is greedy in float32 anyhow
    p = ((log_p - log_p.max(1, keepdim=True).values) / max(c.temperature, 1e-30)).softmax(-1)
    for name, cut in CUTS.items():
        value = getattr(c, name)
        if value != getattr(AS_SCORED, name):
            p = p.masked_fill(~cut(p, value), 0)
    return p / p.sum(1, keepdim=True)
