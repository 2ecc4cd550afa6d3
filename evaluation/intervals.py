"""Means over runs with 95% intervals, and differences paired by seed.

The values of runs with independent seeds, each of which also samples with a seed of its own, hold both
variances: that between trainings and that between texts. So Student's t over the runs' values is an interval
for text metrics too, however the two variances compare. The texts alone would leave out the first one.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from scipy import stats

from evaluation.columns import Column
from evaluation.diversity import TEXT_METRICS
from measures.store import Row

T = TypeVar("T")
Runs = dict[int, Row]  # the runs of one row of the summary by their training seeds


def student_interval(values: list[float]) -> float:
    """Half of the 95% interval of the mean, from the spread of `values`; nan for a single one."""
    n = len(values)
    if n < 2 or not all(map(math.isfinite, values)):
        return math.nan
    return float(stats.t.ppf(0.975, n - 1)) * statistics.stdev(values) / math.sqrt(n)


def half_sampling_interval(
    texts: Sequence[T], metric: Callable[[list[T]], float], halves: int, seed: int = 0
) -> float:
    """Half of the 95% interval of `metric` of texts (or of what is known of each) that no training stands
    behind: the references'.

    The texts stand for all that could have been sampled. The spread of a statistic over random halves, drawn
    without replacement, is that of the statistic of the whole over new samples: (m/n) / (1 - m/n) = 1 at
    m = n/2. A text is never drawn twice: whatever counts repetition among texts (Self-BLEU, self-repetition,
    the compression ratio) would punish one that no model wrote.
    Source: Politis, Romano & Wolf 1999, the bootstrap without replacement.
    """
    rng = np.random.default_rng(seed)
    # in their order, because gzip sees what is near
    picks = [np.sort(rng.permutation(len(texts))[: len(texts) // 2]) for _ in range(halves)]
    return 1.96 * float(np.std([metric([texts[i] for i in pick]) for pick in picks], ddof=1))


def summarise(name: str, runs: Runs, columns: tuple[Column, ...]) -> dict[str, Any]:
    """One row of the summary, of the runs of one configuration.

    For each column the mean, `<key>_seeds`, the value of each of its "seeds", and `<key>_ci`, half of the
    mean's 95% interval; a plain number (Column.best) has no interval.
    """
    rows = list(runs.values())
    out: dict[str, Any] = {"name": name, "runs": [r["name"] for r in rows], "seeds": list(runs)}
    for column in columns:
        key = column.key
        values = [r[key] for r in rows if key in r]
        if not values:
            continue
        out[key] = float(np.mean(values))
        out[key + "_seeds"] = [r.get(key) for r in rows]
        if column.best:
            out[key + "_ci"] = student_interval(values)
    return out


def text_intervals(texts: list[str], halves: int) -> dict[str, float]:
    """`<key>_ci` of each text metric, for texts without a training: nan where a half is too short for the
    metric; {} where a half has fewer than two texts."""
    out: dict[str, float] = {}
    if len(texts) < 4:
        return out
    for key, metric in TEXT_METRICS.items():
        try:
            out[f"{key}_ci"] = half_sampling_interval(texts, metric, halves)
        except ValueError:
            out[f"{key}_ci"] = math.nan
    return out


def differences(runs: Runs, base: Runs, columns: tuple[Column, ...]) -> dict[str, float]:
    """For each column what a row's runs have more than the table's first row, by seed.

    `<key>_diff` is the mean difference, `<key>_diff_ci` half of its 95% interval (Student's t of the pairs).
    One seed is the same start and the same batches, so a pair differs by less than two runs do.
    """
    out: dict[str, float] = {}
    seeds = [s for s in runs if s in base]
    for key in (c.key for c in columns if c.best):
        everywhere = all(key in r[s] for r in (runs, base) for s in seeds)
        if seeds and everywhere:
            values = [runs[s][key] - base[s][key] for s in seeds]
            out[key + "_diff"] = float(np.mean(values))
            out[key + "_diff_ci"] = student_interval(values)
    return out
