"""Statistics of a few values: 95% intervals of a mean, and which of several cannot be told from the best.

Pure functions on numbers; nothing else of this project is imported.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from scipy import stats

T = TypeVar("T")
ALPHA = 0.05
LEAST_SEEDS = 3  # of a row that is marked: two pairs can hardly tell perplexities of 40 and 1,600 apart


class Estimate(NamedTuple):
    mean: float
    half: float  # of its 95% interval
    p: float  # two-sided, of no difference


def estimate(pairs: Sequence[float], *errors: tuple[float, int]) -> Estimate:
    """The mean of values, or of differences that are paired by seed, with an interval of all it varies by.

    `errors`: (standard error, degrees of freedom) of what all pairs share, such as the search of a row.
    Student's t with the degrees of freedom of Welch and Satterthwaite; nan for fewer than two pairs.
    Source: Satterthwaite 1946.
    """
    n, finite = len(pairs), all(map(math.isfinite, pairs))
    mean = statistics.fmean(pairs) if finite else sum(pairs) / n  # fmean has no answer to inf beside -inf
    if n < 2 or not finite:
        return Estimate(mean, math.nan, math.nan)
    parts = [(statistics.variance(pairs) / n, n - 1), *((error**2, freedom) for error, freedom in errors)]
    variance = sum(part for part, _ in parts)
    if not variance:
        return Estimate(mean, 0.0, float(not mean))
    freedom = variance**2 / sum(part**2 / freedom for part, freedom in parts if part)
    error = math.sqrt(variance)
    half, p = stats.t.ppf(0.975, freedom) * error, 2 * stats.t.sf(abs(mean) / error, freedom)
    return Estimate(mean, float(half), float(p))


def half_sampling_interval(
    texts: Sequence[T], metric: Callable[[list[T]], float], halves: int, seed: int = 0
) -> float:
    """Half of the 95% interval of `metric` of texts (or of what is known of each) that no training stands
    behind: the references'.

    The texts stand for all that could have been sampled. The spread of a statistic over random halves, drawn
    without replacement, is that of the statistic of the whole over new samples: (m/n) / (1 - m/n) = 1 at
    m = n/2. A text is never drawn twice: whatever counts repetition among texts, such as Self-BLEU, would
    punish one that no model wrote.
    Source: Politis, Romano & Wolf 1999, the bootstrap without replacement.
    """
    rng = np.random.default_rng(seed)
    picks = [np.sort(rng.permutation(len(texts))[: len(texts) // 2]) for _ in range(halves)]
    return 1.96 * float(np.std([metric([texts[i] for i in pick]) for pick in picks], ddof=1))


def paired_p(a: dict[int, float], b: dict[int, float]) -> float:
    """The p-value of "a's mean is at most b's", by their common seeds; nan for fewer than two."""
    pairs = [a[seed] - b[seed] for seed in a if seed in b]
    if not pairs:
        return math.nan
    mean, _, p = estimate(pairs)
    return p / 2 if mean > 0 else 1 - p / 2


def holm(p: dict[str, float], alpha: float = ALPHA) -> set[str]:
    """The names whose p-values are rejected: the smallest ones, up to the first that is too large.

    The k-th smallest of m is compared with alpha / (m - k + 1). Source: Holm 1979.
    """
    rejected: set[str] = set()
    for k, name in enumerate(sorted(p, key=p.__getitem__)):
        if p[name] > alpha / (len(p) - k):
            break
        rejected.add(name)
    return rejected


def best_group(distances: dict[str, dict[int, float]]) -> set[str]:
    """The names that cannot be told from the best, of each row's distance to the best value by seed.

    The row of least mean is the reference. Every other row is compared with it by a paired t-test over the
    seeds that both have, one-sided, and Holm's procedure corrects for the number of rows. The group holds the
    rows that are not rejected. Whichever row is truly best, any one of the others takes its place with a
    share of the 5% at most, so the best row is in the group with 95%. The group says which rows may be best,
    not that all of them are equal. Source: subset selection, Gupta 1965.

    A row that shares fewer than LEAST_SEEDS with the reference is never in it, nor is one with a distance
    that is not finite.
    """
    many = {name: d for name, d in distances.items() if len(d) >= LEAST_SEEDS}
    sound = {name: d for name, d in many.items() if all(map(math.isfinite, d.values()))}
    if not sound:
        return set()
    best = min(sound, key=lambda name: statistics.fmean(sound[name].values()))
    paired = {n: d for n, d in sound.items() if n != best and len(d.keys() & sound[best]) >= LEAST_SEEDS}
    p = {name: paired_p(d, sound[best]) for name, d in paired.items()}
    return {best, *p} - holm(p)
