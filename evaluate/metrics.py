"""Metrics of distributions: log-probabilities -> numbers.

Pure functions on numpy arrays; nothing else of this project is imported. Those of texts: diversity.py.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

# float32 rounding may carry a probability this far above 1, or a mean NLL this far below 0; more is a mistake
ROUNDING = 1e-6
NUCLEUS = 0.9  # top_p of the coverage
EVERY = 8  # the coverage is measured at one position of so many, because it takes sorting


# ---- probabilities ----


class Calibration:
    """Sums for the expected calibration error, chunk by chunk: three numbers a bin.

    Bin b of `bins` equal ones holds the confidences in (b/bins, (b+1)/bins], as in Guo et al. 2017
    (arXiv 1706.04599). Confidence 0 is in the first.
    """

    def __init__(self, bins: int = 15):
        self.edges = np.linspace(0, 1, bins + 1)
        self.count = np.zeros(bins, np.int64)
        self.confidence, self.correct = np.zeros(bins), np.zeros(bins)

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
        bins = len(self.count)
        b = np.clip(np.searchsorted(self.edges, p) - 1, 0, bins - 1)
        self.count += np.bincount(b, minlength=bins)
        self.confidence += np.bincount(b, p, minlength=bins)
        self.correct += np.bincount(b, hit, minlength=bins)

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


# ---- against a known truth ----


class Recovery:
    """Sums of how a model's next-token distribution m differs from the known truth p, chunk by chunk.

    `means` gives them per position. A token is valid where p > 0. Let m' be m renormalised over the valid
    tokens, and `invalid` its mass on the others. Then KL(p||m) = KL(p||m') - log(1 - invalid): one part of
    the divergence is how the valid tokens share their mass, the other is mass spent on what the language
    forbids. All in nats.
    """

    DECADES = 8  # of the truth's probability: (0.1, 1], (0.01, 0.1], ..., the last all that is smaller
    SUMS = (
        *("kl_truth_model", "kl_model_truth", "tv", "mass_observed", "mass_alternatives", "mass_invalid"),
        *("true_observed", "nll", "true_nll", "entropy"),
    )

    def __init__(self) -> None:
        self.count = 0
        self.sums = dict.fromkeys(self.SUMS, 0.0)
        self.covered, self.judged = 0.0, 0
        # mass that m, and that p, gives to valid tokens other than the observed one
        self.alternatives = np.zeros((2, self.DECADES))

    def add(self, log_m: ArrayLike, p: ArrayLike, token: ArrayLike) -> None:
        """Adds N positions: log m (N, V), p (N, V) and the observed token (N,).

        ValueError for other shapes, for rows of p that do not sum to 1, and for a token that p forbids.
        """
        log_m, p, token = np.asarray(log_m), np.asarray(p, np.float64), np.asarray(token)
        at, valid = np.arange(len(p)), p > 0
        fit = p.ndim == 2 and log_m.shape == p.shape and token.shape == p.shape[:1]
        if not fit or (np.abs(p.sum(1) - 1) > ROUNDING).any() or not valid[at, token].all():
            raise ValueError("log m (N, V), p (N, V), tokens (N,): rows of p sum to 1 and allow their tokens")
        # what follows works on the valid tokens, which are few: one after the other, row by row
        starts = np.cumsum(valid.sum(1)) - valid.sum(1)

        def total(x: np.ndarray) -> np.ndarray:
            """Sum of each row (N,)."""
            return np.add.reduceat(x, starts)

        p, log_valid = p[valid], log_m[valid].astype(np.float64)
        m, log_p = np.exp(log_valid), np.log(p)
        on_valid = total(m)
        invalid = np.where(valid, 0, np.exp(log_m)).sum(1, dtype=np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            kl_valid = total(np.where(m > 0, m * (log_valid - log_p), 0)) / on_valid - np.log(on_valid)
        observed = np.searchsorted(np.flatnonzero(valid), at * valid.shape[1] + token)
        self.count += len(at)
        values = {
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
        for key, value in values.items():
            self.sums[key] += float(value.sum())
        decade = np.clip(np.floor(-log_p / math.log(10)).astype(np.int64), 0, self.DECADES - 1)
        other = np.ones(len(p), bool)
        other[observed] = False
        self.alternatives += [np.bincount(decade[other], x[other], self.DECADES) for x in (m, p)]

    def totals(self) -> list[float]:
        """All that was added: those of several processes, added up, are those of all positions."""
        first = (self.count, self.covered, self.judged, *self.sums.values())
        return [*first, *self.alternatives.ravel()]

    def set_totals(self, totals: Sequence[float] | np.ndarray) -> None:
        """Takes the place of what was counted; `totals`: sums of those of several objects."""
        self.count, self.covered, self.judged = int(totals[0]), totals[1], int(totals[2])
        sums = 3 + len(self.sums)
        self.sums = dict(zip(self.SUMS, totals[3:sums]))
        self.alternatives = np.reshape(totals[sums:], (2, -1))

    def add_coverage(self, p: ArrayLike, reachable: ArrayLike) -> None:
        """Adds p (N, V) and whether the sampler can draw each token (N, V) bool.

        It may be called for some of the positions only.
        """
        covered = np.where(reachable, p, 0).sum(1)
        self.covered, self.judged = self.covered + float(covered.sum()), self.judged + len(covered)

    def means(self) -> dict[str, float]:
        """Means over the positions, of which there is one at least.

        kl_truth_model      KL(p||m); inf where m gives a valid token probability 0
        kl_model_truth      KL(m'||p) with m' as above: KL(m||p) is inf once m has mass on an invalid token
        tv                  total variation, sum_v |m - p| / 2: finite whatever has probability 0
        mass_observed       m's mass on the observed token; true_observed is p's
        mass_alternatives   m's mass on the other valid tokens
        mass_invalid        m's mass on the rest
        nll, true_nll       -log of m's and of p's probability of the observed token
        ppl_floor           exp(nll - true_nll): m's perplexity over the truth's own, 1 at best
        entropy             H(p), of which true_nll is an estimate
        coverage            p's mass on the tokens that the sampler can draw, if `add_coverage` was called
        alternatives        mass_alternatives / p's mass on the same tokens: below 1, m gives them too little
        alternatives_error  sum over the decades of p of |m's - p's mass on alternatives|, from 0 to 2
        """
        out = {key: value / self.count for key, value in self.sums.items()}
        if self.judged:
            out["coverage"] = self.covered / self.judged
        m, p = self.alternatives
        above = out["nll"] - out["true_nll"]
        out["ppl_floor"] = math.exp(min(above, 709.0)) if above < math.inf else above
        out["alternatives"] = float(m.sum() / p.sum()) if p.sum() else math.nan
        out["alternatives_error"] = float(np.abs(m - p).sum() / self.count)
        return out

    def by_decade(self) -> list[tuple[float, float]]:
        """(m's, p's) mean mass on the alternatives whose true probability is in (0.1, 1], (0.01, 0.1], ..."""
        m, p = self.alternatives / max(1, self.count)
        return list(zip(m.tolist(), p.tolist()))


# ---- windows of text: what a model reads of it, and which tokens are compared with the truth ----


class Window(NamedTuple):
    start: int  # of the inputs in the text
    first: int  # the targets first, ..., stop - 1 of the window count
    stop: int


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
        out.append(Window(int(ends[i]), 0, int(ends[j] - ends[i]) if j > i else block_size))
        i = max(j, i + 1)
    return out


def training_windows(ends: np.ndarray, block_size: int, context: int = 0) -> list[Window]:
    """The windows that a model is trained on (data.batches.Windows), where a document begins in them.

    As in `document_windows` those targets count that have all of their document in view, from the first new
    document on. But the windows are those of training: what a model has learnt by heart it may know only
    there, at these positions. `context`: tokens of each that it reads; 0: block_size.
    """
    out = []
    for start in range(0, int(ends[-1]) + 1 - block_size, block_size):
        first = int(ends[np.searchsorted(ends, start)]) - start
        if first < (context or block_size):
            out.append(Window(start, first, context or block_size))
    return out


def positions_of(plan: list[Window]) -> np.ndarray:
    """The positions (N,) in the text of all targets that count."""
    return np.concatenate([np.arange(w.start + 1 + w.first, w.start + 1 + w.stop) for w in plan])


def read_windows(
    ids: np.ndarray, part: list[Window], block_size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The tokens (B, T) of some windows, whether the target of each counts (B, T), and the positions (N,) in
    the text of those that do."""
    starts, first, stop = np.array(part).T[:, :, None]  # (B, 1) each
    at = np.arange(block_size)
    inputs = starts + at  # (B, T); beyond the text anything will do: nothing that counts sees it
    counted = (first <= at) & (at < stop)
    return ids[np.minimum(inputs, len(ids) - 1)].astype(np.int64), counted, inputs[counted] + 1
