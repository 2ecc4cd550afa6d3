"""Metrics of distributions: log-probabilities -> numbers.

Pure functions on numpy arrays; nothing else of this project is imported. Those of texts: diversity.py.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

# float32 rounding may carry a probability this far above 1, or a mean NLL this far below 0; more is a mistake
ROUNDING = 1e-6
BINS = 15  # of the calibration error, as in Guo et al.


# ---- probabilities ----


class Calibration:
    """Sums for the expected calibration error (ECE), chunk by chunk: three numbers a bin.

    Bin b of BINS equal ones holds the confidences in (b/BINS, (b+1)/BINS]; confidence 0 is in the first.
    Source: Guo et al. 2017, arXiv 1706.04599, eq. 3.
    """

    def __init__(self) -> None:
        self.edges = np.linspace(0, 1, BINS + 1)
        self.count = np.zeros(BINS, np.int64)
        self.confidence, self.correct = np.zeros(BINS), np.zeros(BINS)

    def add(self, confidence: ArrayLike, correct: ArrayLike) -> None:
        """Adds predictions: the probability of each and whether it was right (bool or 0/1), in one shape.

        ValueError for different shapes, for a confidence that is NaN or outside 0..1 (beyond float32
        rounding), and for a `correct` other than 0 and 1.
        """
        p, hit = np.asarray(confidence, np.float64), np.asarray(correct, np.float64)
        sound = ((p >= 0) & (p <= 1 + ROUNDING)).all() and np.isin(hit, (0, 1)).all()
        if p.shape != hit.shape or not sound:
            raise ValueError("confidence and correct: give numbers in 0..1 and 0 or 1, in one shape")
        p, hit = p.ravel(), hit.ravel()
        b = np.clip(np.searchsorted(self.edges, p) - 1, 0, BINS - 1)
        self.count += np.bincount(b, minlength=BINS)
        self.confidence += np.bincount(b, p, minlength=BINS)
        self.correct += np.bincount(b, hit, minlength=BINS)

    def ece(self) -> float:
        """Sum over bins of (count / all) |accuracy - mean confidence|, 0..1; nan before any `add`."""
        count = self.count.sum()
        return float(np.abs(self.correct - self.confidence).sum() / count) if count else math.nan


def _mean_nll(nll_sum: float, count: int, unit: str) -> float:
    mean = float(nll_sum) / count if count > 0 else math.nan
    if not mean >= -ROUNDING:  # written so that NaN is a mistake
        raise ValueError(f"an NLL sum of {nll_sum} over {count} {unit}: give a sum of -log p, not of log p")
    return mean


def perplexity(nll_sum: float, count: int) -> float:
    """exp(nll_sum / count), for a sum of -log p in nats.

    Count tokens or words, and say which: the two are not comparable.
    inf where nll_sum is inf (some p was 0; nothing is clamped), and where exp overflows, from 709.78 nats on.
    ValueError for a count below 1, and for an NLL sum that is NaN or negative.
    """
    mean = _mean_nll(nll_sum, count, "tokens or words")
    try:
        return math.exp(mean)
    except OverflowError:
        return math.inf


def bits_per_byte(nll_sum: float, n_bytes: int) -> float:
    """nll_sum / (ln 2 * n_bytes), for a sum of -log p in nats: comparable across tokenizers.

    n_bytes counts the UTF-8 bytes of the original text. inf where nll_sum is inf. ValueError for n_bytes
    below 1, and for an NLL sum that is NaN or negative.
    """
    return _mean_nll(nll_sum, n_bytes, "bytes") / math.log(2)
