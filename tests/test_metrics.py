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


# ---- against a known truth -----------------------------------------------------------------------


def test_recovery_by_hand():
    log = lambda *p: [math.log(v) if v else -math.inf for v in p]
    r = metrics.Recovery()
    r.add([log(0.5, 0.2, 0.2, 0.1)], [[0.6, 0.35, 0.05, 0.0]], [0])
    r.add_coverage([[0.6, 0.35, 0.05, 0.0]], [[True, True, False, False]])
    m = r.means()
    assert m["kl_truth_model"] == pytest.approx(
        0.6 * math.log(1.2) + 0.35 * math.log(1.75) + 0.05 * math.log(0.25)
    )
    assert m["kl_model_truth"] == pytest.approx(
        5 / 9 * math.log(5 / 9 / 0.6) + 2 / 9 * math.log(2 / 9 / 0.35) + 2 / 9 * math.log(2 / 9 / 0.05)
    )
    assert (m["tv"], m["mass_invalid"], m["coverage"]) == pytest.approx((0.25, 0.1, 0.95)) and m[
        "ppl_floor"
    ] == pytest.approx(1.2)
    alternatives = m["mass_alternatives"], m["alternatives"], m["alternatives_error"]
    assert alternatives == pytest.approx((0.4, 1, 0.15 + 0.15))
    assert r.by_decade()[:2] == [pytest.approx((0.2, 0.35)), pytest.approx((0.2, 0.05))]
    r.add([log(0.0, 1.0, 0.0, 0.0)], [[0.6, 0.4, 0.0, 0.0]], [0])  # a valid token ruled out
    m = r.means()
    assert m["kl_truth_model"] == m["nll"] == m["ppl_floor"] == math.inf
    assert 0 < m["kl_model_truth"] < math.inf and m["tv"] == pytest.approx((0.25 + 0.6) / 2)
    r.add([log(0.0, 0.0, 0.0, 1.0)], [[0.6, 0.4, 0.0, 0.0]], [0])  # nothing valid left
    assert r.means()["kl_model_truth"] == math.inf


def test_recovery_of_shares_adds_up():
    """As several processes do it, one of which may have nothing."""
    rng = np.random.default_rng(3)
    m, p = rng.dirichlet(np.ones(6), 200), rng.dirichlet(np.ones(6), 200)
    p[:, 5] = 0  # forbidden
    p /= p.sum(1, keepdims=True)
    observed = np.array([rng.choice(6, p=row) for row in p])

    def of(part: slice) -> metrics.Recovery:
        share = metrics.Recovery()
        share.add(np.log(m[part]), p[part], observed[part])
        share.add_coverage(p[part], m[part] > 0.1)
        return share

    whole, total = of(slice(None)), metrics.Recovery()
    parts = slice(0, None, 2), slice(1, None, 2), slice(0, 0)
    total.set_totals(np.sum([of(part).totals() for part in parts], axis=0).tolist())
    assert total.count == whole.count == 200 and total.means() == pytest.approx(whole.means())
    assert total.by_decade() == [pytest.approx(pair) for pair in whole.by_decade()]
