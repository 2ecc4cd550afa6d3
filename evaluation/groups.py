"""The stars of a summary: in each column the rows that cannot be told from the best one.

The row of best mean is the reference. Every other row is compared with it by a paired t-test over the seeds
that both have, and Holm's procedure corrects for the number of rows. What is not rejected is in the group.
A row that is as good as the best one stays in it with at least 95%, because it is one comparison of those
that share the 5%. The group as a whole is no such statement: it says who may be best, not who is equal.
"""

import math
import statistics

from scipy import stats

from evaluation.columns import Column
from evaluation.intervals import Runs
from evaluation.tables import Row, distance

ALPHA = 0.05
QUALITY = "ppl_eps"  # finite for every head


def paired_p(a: dict[int, float], b: dict[int, float], one_sided: bool = False) -> float:
    """The p-value of "a and b have equal means", or one-sided of "a's mean is at most b's", by their common
    seeds; nan for fewer than two."""
    d = [a[seed] - b[seed] for seed in a if seed in b]
    n = len(d)
    if n < 2:
        return math.nan
    mean, spread = statistics.fmean(d), statistics.stdev(d)
    if spread:
        t = mean / spread * math.sqrt(n)
    else:  # all differences are the same one
        t = math.copysign(math.inf, mean) if mean else 0.0
    return float(stats.t.sf(t, n - 1)) if one_sided else 2 * float(stats.t.sf(abs(t), n - 1))


def holm(p: dict[str, float], alpha: float = ALPHA) -> set[str]:
    """What is rejected: the smallest p-values, up to the first that is too large.

    The k-th smallest of m is compared with alpha / (m - k + 1). Source: Holm 1979.
    """
    rejected: set[str] = set()
    for k, name in enumerate(sorted(p, key=p.__getitem__)):
        if p[name] > alpha / (len(p) - k):
            break
        rejected.add(name)
    return rejected


def group(distances: dict[str, dict[int, float]]) -> set[str]:
    """The names that cannot be told from the best, of each row's distance to the best value by seed.

    A row of one seed, or with fewer than two seeds of the reference's, is never in it, nor is one with a
    distance that is not finite.
    """
    sound = {n: d for n, d in distances.items() if len(d) > 1 and all(map(math.isfinite, d.values()))}
    if not sound:
        return set()
    best = min(sound, key=lambda name: statistics.fmean(sound[name].values()))
    p = {name: paired_p(d, sound[best]) for name, d in sound.items() if name != best}
    p = {name: value for name, value in p.items() if not math.isnan(value)}
    return {best, *p} - holm(p)


def worse(rows: dict[str, Runs]) -> set[str]:
    """The rows that predict text worse than the first row, or of which nobody can know it.

    A paired t-test of log PPL_eps, one-sided, each row at 5%: without a correction for their number, which
    would let more of the worse rows in.
    """
    quality = {
        name: {seed: math.log(r[QUALITY]) for seed, r in runs.items() if r.get(QUALITY, 0) > 0}
        for name, runs in rows.items()
    }
    first, *others = quality
    p = {name: paired_p(quality[name], quality[first], one_sided=True) for name in others}
    return {name for name, value in p.items() if not value > ALPHA}


def marks(rows: dict[str, Runs], human: Row, columns: tuple[Column, ...]) -> dict[str, dict[str, bool]]:
    """For each row its `<key>_best`, whether it is in the group of that column, and `quality_worse`.

    The first row is the standard of quality. Text that is as diverse as human text can be noise: where
    nearness to human is best, a row competes only if it predicts text no worse than that.
    """
    bad = worse(rows)
    out: dict[str, dict[str, bool]] = {name: {"quality_worse": name in bad} for name in rows}
    for column in columns:
        key, near = column.key, column.best == "human"
        if not column.best or (near and key not in human):
            continue
        far = {
            name: {seed: distance(r, human, column) for seed, r in runs.items() if key in r}
            for name, runs in rows.items()
            if not (near and name in bad)
        }
        found = group(far)
        for name, runs in rows.items():
            if any(key in r for r in runs.values()):
                out[name][key + "_best"] = name in found
    return out
