"""metrics.py against numpy, and worked examples."""

import itertools
import math

import numpy as np
import pytest
import torch

from evaluate import metrics
from tests.fixtures import ece

# ---- probabilities -------------------------------------------------------------------------------


def test_ece_bins_are_open_below_and_closed_above():
    edges = np.linspace(0, 1, 16)
    calibration = metrics.Calibration(15)
    calibration.add(edges, np.ones(16))
    assert calibration.count.tolist() == [2] + [1] * 14  # 0 and 1/15 in the first, then one edge in each
    calibration.add(np.nextafter(edges[:-1], 1), np.ones(15))
    assert calibration.count.tolist() == [3] + [2] * 14


def test_ece_is_the_loop_of_guo_et_al():
    rng = np.random.default_rng(1)
    p = rng.random(5000)
    correct = rng.random(5000) < p**2  # overconfident
    expected, edges = 0.0, np.linspace(0, 1, 16)
    for low, high in itertools.pairwise(edges):
        inside = (p > low) & (p <= high)
        if inside.any():
            expected += inside.mean() * abs(correct[inside].mean() - p[inside].mean())
    assert expected > 0.1
    assert ece(p, correct) == pytest.approx(expected, rel=1e-12)
    assert ece(torch.tensor(p), torch.tensor(correct)) == ece(p, correct)


@pytest.mark.parametrize(
    "call",
    [
        *(lambda p=p: ece(p, [1] * len(p)) for p in ([0.5, 1.5], [-0.1], [math.nan])),
        *(lambda hit=hit: ece([0.5], hit) for hit in ([2], [math.nan], [1, 1])),
        *(lambda nll=nll: metrics.perplexity(nll, 3) for nll in (math.nan, -5.0)),
        lambda: metrics.perplexity(1.0, 0),
        lambda: metrics.bits_per_byte(1.0, 0),
        lambda: metrics.bits_per_byte(-math.inf, 2),
    ],
)
def test_what_is_no_probability_or_nll_is_refused(call):
    with pytest.raises(ValueError):
        call()


def test_perplexity_and_bits_per_byte():
    assert metrics.perplexity(0.0, 7) == 1
    # the uniform distribution: the vocabulary
    assert metrics.perplexity(10 * math.log(50257), 10) == pytest.approx(50257)
    assert metrics.perplexity(math.inf, 10) == math.inf
    assert metrics.perplexity(1e6, 1) == math.inf  # beyond the largest float, not an OverflowError
    assert metrics.perplexity(-1e-8, 1) == pytest.approx(1)  # rounding of a sure prediction
    assert metrics.bits_per_byte(100 * math.log(256), 100) == pytest.approx(8)
    assert metrics.bits_per_byte(math.inf, 10) == math.inf
