"""How next-word distributions m of a model differ from the known ones p: numbers of positions, and means.

A word is valid where p > 0. Let m' be m renormalised over the valid words, and `invalid` its mass on the
others. Then KL(p||m) = KL(p||m') - log(1 - invalid): one part of the divergence is how the valid words share
their mass, the other is mass spent on what the language forbids. All in nats.
"""

import math
from typing import NamedTuple

import numpy as np

DECADES = 8  # of the truth's probability: (0.1, 1], (0.01, 0.1], ..., the last all that is smaller
SUMS = (
    *("count", "kl_truth_model", "kl_model_truth", "tv", "mass_observed", "mass_alternatives"),
    *("mass_invalid", "true_observed", "nll", "true_nll", "entropy"),
)


def position_numbers(log_m: np.ndarray, p: np.ndarray, token: np.ndarray) -> np.ndarray:
    """SUMS of each of N positions, then m's and p's mass on the alternatives by decades of p (N, K); of log m
    (N, V), p (N, V) and the observed token (N,), which p allows."""
    n, at, valid = len(p), np.arange(len(p)), p > 0
    # what follows works on the valid tokens, which are few: one after the other, row by row
    starts = np.cumsum(valid.sum(1)) - valid.sum(1)
    total = lambda x: np.add.reduceat(x, starts)
    p, log_valid = p[valid], log_m[valid].astype(np.float64)
    m, log_p = np.exp(log_valid), np.log(p)
    on_valid = total(m)
    invalid = np.where(valid, 0, np.exp(log_m)).sum(1, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        kl_valid = total(np.where(m > 0, m * (log_valid - log_p), 0)) / on_valid - np.log(on_valid)
    observed = np.searchsorted(np.flatnonzero(valid), at * valid.shape[1] + token)
    values = {
        "count": np.ones(n),
        "kl_truth_model": total(p * (log_p - log_valid)),
        "kl_model_truth": np.where(on_valid > 0, kl_valid, math.inf),
        "tv": (total(np.abs(m - p)) + invalid) / 2,
        "mass_observed": m[observed],
        "mass_alternatives": on_valid - m[observed],
        "mass_invalid": invalid,
        "true_observed": p[observed],
        "nll": -log_valid[observed],
        "true_nll": -log_p[observed],
        "entropy": -total(p * log_p),
    }
    decade = np.clip(np.floor(-log_p / math.log(10)).astype(np.int64), 0, DECADES - 1)
    bins = np.nonzero(valid)[0] * DECADES + decade
    m[observed] = p[observed] = 0  # what is left are the alternatives
    masses = [np.bincount(bins, x, n * DECADES).reshape(n, -1) for x in (m, p)]
    return np.column_stack([*(values[key] for key in SUMS), *masses])


def means(sums: np.ndarray) -> dict[str, float]:
    """Means over the positions, of sums (K,) of `position_numbers`.

    kl_truth_model      KL(p||m); inf where m gives a valid token probability 0
    kl_model_truth      KL(m'||p) with m' as above: KL(m||p) is inf once m has mass on an invalid token
    tv                  total variation, sum_v |m - p| / 2: finite whatever has probability 0
    mass_observed       m's mass on the observed token; true_observed is p's
    mass_alternatives   m's mass on the other valid tokens
    mass_invalid        m's mass on the rest
    nll, true_nll       -log of m's and of p's probability of the observed token
    ppl_floor           exp(nll - true_nll): m's perplexity over the truth's own, 1 at best
    entropy             H(p), of which true_nll is an estimate
    alternatives        mass_alternatives / p's mass on the same tokens: below 1, m gives them too little
    alternatives_error  sum over the decades of p of |m's - p's mass on alternatives|, from 0 to 2
    """
    out = {key: float(value / sums[0]) for key, value in zip(SUMS[1:], sums[1:])}
    m, p = np.reshape(sums[len(SUMS) :], (2, DECADES))
    above = out["nll"] - out["true_nll"]
    out["ppl_floor"] = math.exp(min(above, 709.0)) if above < math.inf else above
    out["alternatives"] = float(m.sum() / p.sum()) if p.sum() else math.nan
    out["alternatives_error"] = float(np.abs(m - p).sum() / sums[0])
    return out


# -----------------------------------------------------------------------------
# Windows of text: what a model reads of it, and which tokens are compared with the truth


class Window(NamedTuple):
    start: int  # of the inputs in the text
    stop: int  # the first so many targets count


def document_windows(ends: np.ndarray, block_size: int) -> list[Window]:
    """The windows over documents whose last tokens are at `ends`.

    The truth knows all tokens before a position; a model knows its window. To give both the same context, a
    window starts at the end token before a document and counts as many whole documents as it holds: each
    token is scored once, with all of its document in view. If a document is longer than the block, its first
    block_size tokens count. The first document of the text has nothing before it and is not scored.
    """
    out, i = [], 0
    while i < len(ends) - 1:
        j = int(np.searchsorted(ends, ends[i] + block_size, "right")) - 1  # the last end among the targets
        out.append(Window(int(ends[i]), int(ends[j] - ends[i]) if j > i else block_size))
        i = max(j, i + 1)
    return out
