"""The stars of a summary: in each column the rows that cannot be told from the best one.

The row of best mean is the reference. Every other row is compared with it by a paired t-test over the seeds
that both have, one-sided, and Holm's procedure corrects for the number of rows. Who is not rejected is in the
group. Whichever row is truly best, any one of the others takes its place with a share of the 5% at most, so
it is in the group with 95%. That says who may be best, not that all of them are equal.
Source: subset selection, Gupta 1965.
"""

import math
import statistics

from scipy import stats

from evaluation.columns import Column
from evaluation.intervals import Runs
from measures.store import Row
from measures.views import distance

ALPHA = 0.05
LEAST_SEEDS = 3  # of a row that is marked: two pairs can hardly tell perplexities of 40 and 1,600 apart
QUALITY = "ppl_eps"  # finite for every head


def paired_p(a: dict[int, float], b: dict[int, float]) -> float:
    """The p-value of "a's mean is at most b's", by their common seeds; nan for fewer than two."""
    d = [a[seed] - b[seed] for seed in a if seed in b]
    n = len(d)
    if n < 2:
        return math.nan
    mean, spread = statistics.fmean(d), statistics.stdev(d)
    if spread:
        t = mean / spread * math.sqrt(n)
    else:  # all differences are the same one
        t = math.copysign(math.inf, mean) if mean else 0.0
    return float(stats.t.sf(t, n - 1))


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
    p = {name: paired_p(quality[name], quality[first]) for name in others}
    return {name for name, value in p.items() if not value > ALPHA}


def compared(row: Row, human: Row, column: Column) -> float:
    """How far a run is from the column's best value; a perplexity by its logarithm, the mean NLL."""
    far = distance(row, human, column)
    return math.log(far) if column.key.startswith("ppl_") and far > 0 else far


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
            name: {seed: compared(r, human, column) for seed, r in runs.items() if key in r}
            for name, runs in rows.items()
            if not (near and name in bad)
        }
        found = group(far)
        for name, runs in rows.items():
            if any(key in r for r in runs.values()):
                out[name][key + "_best"] = name in found
    return out
