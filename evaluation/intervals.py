"""Means over runs with 95% intervals, and differences paired by seed."""

import math
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import stats

from evaluation import metrics
from evaluation.columns import Column
from evaluation.tables import Row, cells


def _of_words(metric: Callable) -> Callable[[list[str]], float]:
    """A metric of words as one of texts."""
    return lambda texts: metric([t.split() for t in texts])


TEXT_METRICS = {
    "self_bleu": metrics.self_bleu_sacre,
    "distinct_4": _of_words(metrics.distinct_n),
    "seq_rep_4": _of_words(metrics.seq_rep_n),
    "zipf": _of_words(metrics.zipf_coefficient),
}


def student_interval(values: list[float]) -> float:
    """Half of the 95% interval of the mean, from the spread of `values`; nan for a single one."""
    n = len(values)
    if n < 2 or not all(map(math.isfinite, values)):
        return math.nan
    return float(stats.t.ppf(0.975, n - 1)) * statistics.stdev(values) / math.sqrt(n)


def half_sampling_interval(
    texts: list[list[str]], metric: Callable[[list[str]], float], halves: int, seed: int = 0
) -> float:
    """Half of the 95% interval of the mean of `metric` over several lists of texts.

    The texts stand for all that could have been sampled. The spread of a statistic over random halves, drawn
    without replacement, is that of the statistic of the whole over new samples: (m/n) / (1 - m/n) = 1 at
    m = n/2. A text is never drawn twice: Self-BLEU would punish a repetition that no model wrote.
    Source: Politis, Romano & Wolf 1999, the bootstrap without replacement.
    """
    rng, means = np.random.default_rng(seed), []
    for _ in range(halves):
        picks = [rng.permutation(len(t))[: len(t) // 2] for t in texts]
        means.append(np.mean([metric([t[i] for i in pick]) for t, pick in zip(texts, picks)]))
    return 1.96 * float(np.std(means, ddof=1))


def summarise(
    name: str, rows: list[Row], texts: list[list[str]], columns: tuple[Column, ...], halves: int
) -> dict[str, Any]:
    """One row of the summary, of `rows`, the runs of one configuration, and their texts.

    For each column the mean, and `<key>_ci`, half of its 95% interval.
    """
    out: dict[str, Any] = {
        "name": name,
        "reference": bool(rows[0].get("reference")),
        "runs": [r["name"] for r in rows],
    }
    for key in (c.key for c in columns):
        values = [r[key] for r in rows if key in r]
        if not values:
            continue
        out[key] = float(np.mean(values))
        if key in TEXT_METRICS:
            out[key + "_ci"] = half_sampling_interval(texts, TEXT_METRICS[key], halves)
        else:
            out[key + "_ci"] = student_interval(values)
    return out


def differences(runs: dict[int, Row], base: dict[int, Row], columns: tuple[Column, ...]) -> dict[str, float]:
    """For each column that training decides, what a row's runs have more than the table's first row, by seed.

    `<key>_diff` is the mean difference, `<key>_diff_ci` half of its 95% interval (Student's t of the pairs).
    One seed is the same start and the same batches, so a pair differs by less than two runs do.
    """
    out: dict[str, float] = {}
    seeds = [s for s in runs if s in base]
    for key in (c.key for c in columns):
        everywhere = all(key in r[s] for r in (runs, base) for s in seeds)
        if key not in TEXT_METRICS and seeds and everywhere:
            values = [runs[s][key] - base[s][key] for s in seeds]
            out[key + "_diff"] = float(np.mean(values))
            out[key + "_diff_ci"] = student_interval(values)
    return out


def with_intervals(summary: list[Row], columns: tuple[Column, ...]) -> list[list[str]]:
    """The cells of the summary, an interval behind each mean."""
    body = cells(summary, columns)
    for line, row in zip(body, summary):
        for i, c in enumerate(columns, 1):
            ci = row.get(c.key + "_ci", math.nan)
            if math.isfinite(ci):
                mean, *rest = line[i].split(" ")
                line[i] = " ".join([mean, "±", format(ci, c.form), *rest])
    return body
