"""Scoring: every token once, in the context that the windows say, with the distribution that is sampled; and
metrics.py against numpy, and worked examples."""

import copy
import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch

from common.device import autocast
from evaluate import metrics
from evaluate.scoring import EPSILON, TemperedCalibration, evenly_spread, fit_temperature, score, windows
from heads import Softmax, project
from model import LanguageModel
from tests.fixtures import ece, random_model

V, T = 61, 8
tiny = partial(random_model, block=T)
# a plain head, one with sigmoids, one with exact zeros: what holds for all heads is tests/test_heads.py's
heads = pytest.mark.parametrize("name", ["softmax", "sigmoid", "sparsemax"])


def text(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, V, count).astype(np.uint16)


@torch.no_grad()
def naive(model: LanguageModel, ids: np.ndarray, stride: int) -> torch.Tensor:
    """log p (count - 1, V) in float64, a token at a time: each from the start of the first window with it."""
    block, count = model.trunk.config.block_size, len(ids)
    model, x, rows = copy.deepcopy(model).double(), torch.from_numpy(ids.astype(np.int64)), []
    for t in range(1, count):
        nth = max(0, -(-(t - block) // stride))
        start = min(nth * stride, max(0, count - 1 - block))
        h = model.trunk(x[None, start:t])[0, -1:]
        rows.append(model.head.head.log_probs(project(h, model.head.projection.draw(), model.head.head)))
    return torch.cat(rows)


def target_nll(lp: torch.Tensor, ids: np.ndarray) -> torch.Tensor:
    return -lp.gather(1, torch.from_numpy(ids[1:].astype(np.int64))[:, None]).squeeze(1)


def test_windows_score_every_token_once():
    for count in range(41):
        for block in range(1, 12):
            for stride in range(1, block + 1):
                plan, whole = windows(count, block, stride), min(block, count - 1)
                scored = [start + offset + 1 for start, first in plan for offset in range(first, whole)]
                assert scored == list(range(1, count)), (count, block, stride)
                assert all(0 <= start <= count - 1 - whole and 0 <= first < whole for start, first in plan)
                starts = [start for start, _ in plan]
                assert starts[:-1] == list(range(0, stride * (len(plan) - 1), stride))
                # after the first window, no less context than promised
                assert all(first >= block - stride for _, first in plan[1:])


def test_a_part_is_spread_over_the_text():
    assert evenly_spread(list(range(10)), 0) == evenly_spread(list(range(10)), 10) == list(range(10))
    assert evenly_spread(list(range(10)), 2) == [2, 7] and evenly_spread(list(range(7)), 3) == [1, 3, 5]
    for n in range(1, 40):
        for count in range(1, n):
            part = evenly_spread(list(range(n)), count)
            assert len(set(part)) == count and part == sorted(part) and 0 <= part[0] and part[-1] < n


@heads
@pytest.mark.parametrize(
    "count, stride, batch",
    [(40, 8, 16), (43, 3, 4), (30, 1, 1), (9, 8, 16), (8, 2, 3), (5, 4, 16), (2, 1, 16)],
)
def test_score_equals_one_token_at_a_time(name, count, stride, batch):
    model, ids = tiny(name), text(count)
    s = score(model, ids, stride, batch=batch)
    nll = target_nll(naive(model, ids, stride), ids)
    assert (s.tokens, s.zeros) == (count - 1, nll.isinf().sum())
    assert s.zeros == 0 or model.head.head.sparse
    assert s.nll == pytest.approx(nll.sum().item(), rel=2e-6)


def test_a_shorter_context_is_all_that_a_token_is_given():
    model, ids = tiny(), text(40)
    with torch.no_grad():
        log_p = model.log_probs(torch.from_numpy(ids[:-1].astype(np.int64))[:, None])[:, 0]
    assert score(model, ids, context=1).nll == pytest.approx(target_nll(log_p, ids).sum().item(), rel=1e-6)
    assert score(model, ids, context=10**6) == score(model, ids)


def test_projecting_in_parts_changes_nothing(monkeypatch):
    each = TemperedCalibration(0.8), TemperedCalibration(0.8)
    whole = score(tiny(), text(60), 5, each=each[0])
    monkeypatch.setattr("heads.output.chunk_rows", lambda *_: 3)
    monkeypatch.setattr("heads.output.block_rows", lambda *_: 2)
    parts = score(tiny(), text(60), 5, each=each[1])
    assert parts == pytest.approx(whole, rel=1e-6)
    assert each[1].numbers() == pytest.approx(each[0].numbers(), rel=1e-6)


class Top5(Softmax):
    """A head with exact zeros: the five most probable tokens share everything."""

    def log_probs(self, logits):
        return super().log_probs(logits.masked_fill(logits < logits.topk(5).values[:, -1:], -math.inf))


def test_probabilities_that_do_not_sum_to_one_have_no_perplexity(monkeypatch):
    monkeypatch.setattr(Softmax, "log_probs", lambda self, z: z.log_softmax(-1) + 0.01)
    with pytest.raises(ValueError, match="normalised"):
        score(random_model("softmax").eval(), np.arange(40))


def test_tokens_of_probability_zero_are_counted_and_never_clamped():
    model, ids = tiny(), text(50)
    model.head.head = Top5(V)
    nll = target_nll(naive(model, ids, 3), ids)
    calibrated = TemperedCalibration()
    s = score(model, ids, 3, each=calibrated)
    assert s.nll == math.inf and s.tokens == 49 and s.zeros == nll.isinf().sum() and 0 < s.zeros < 49
    numbers = calibrated.numbers()
    assert 0 <= numbers["ece"] <= 1 and numbers.keys() == {"ece", "sparsemax_score"}
    p, t = naive(model, ids, 3).exp().double(), torch.from_numpy(ids[1:].astype(np.int64))
    p_t, eps = p.gather(1, t[:, None]).squeeze(1), EPSILON
    assert s.eps_nll == pytest.approx(-((p_t + eps) / (p + eps).sum(1)).log().sum().item(), rel=1e-5)
    mean = (p_t + (1 - (p * p).sum(1)) / 2).mean().item()
    assert numbers["sparsemax_score"] == pytest.approx(mean, rel=1e-5)
    for t in range(1, T + 1):  # a text of possible tokens only
        lp = naive(model, ids[: t + 1], 8)[-1]
        ids[t] = lp.topk(5).indices[t % 5]
    s = score(model, ids[: T + 1])
    nll = target_nll(naive(model, ids[: T + 1], 8), ids[: T + 1])
    assert s.zeros == 0 and s.nll == pytest.approx(nll.sum().item(), rel=1e-6)


@pytest.mark.parametrize("name", ["softmax", "sigmoid"])
def test_ece_is_that_of_all_tokens_at_once(name):
    model, ids = tiny(name), text(200)
    lp = naive(model, ids, 5)
    ids[1::3] = lp.argmax(1)[::3].numpy()  # some hits; changes later contexts, so:
    confidence, best = naive(model, ids, 5).max(1)
    expected = ece(confidence.exp().numpy(), best.numpy() == ids[1:])
    calibrated = TemperedCalibration()
    score(model, ids, 5, batch=4, each=calibrated)
    assert calibrated.numbers()["ece"] == pytest.approx(expected, abs=1e-6)
    assert expected > 0.05


@pytest.mark.parametrize("name, scale", [("softmax", 5), ("sigmoid", 5), ("softmax", 40), ("entmax15", 12)])
def test_the_fitted_temperature_is_the_best_one(name, scale):
    """PPL_eps and ECE at it are those of p^(1/tau), and none of 1,000 temperatures has a lower PPL_eps."""
    model, ids = tiny(name), text(38 * T + 1)
    windows_of = ids[:-1].reshape(-1, T)
    with torch.no_grad():
        model.head.projection.weight *= scale  # far too sure
        for at in range(1, T):  # right at some places, which decide the later ones
            h = model.trunk(torch.from_numpy(windows_of[:, :at].astype(np.int64)))[:, -1]
            best = model.head.head.log_probs(project(h, model.head.projection.draw(), model.head.head))
            windows_of[at % 3 :: 2, at] = best.argmax(1)[at % 3 :: 2]
    tau = fit_temperature(model, ids, model.head.draws(1, 0))
    lp, t = naive(model, ids, T).double(), torch.from_numpy(ids[1:].astype(np.int64))

    def perplexity_at(temperature):
        p = (lp / temperature).softmax(1)
        return -((p.gather(1, t[:, None]) + EPSILON) / (1 + EPSILON * V)).log().mean().item(), p

    best, p = perplexity_at(tau)
    grid = np.geomspace(1 / 8, 8, 1000)
    assert tau != 1 and best < min(perplexity_at(at)[0] for at in grid) + 1e-6
    calibrated = TemperedCalibration(tau)
    score(model, ids, T, each=calibrated)
    numbers = calibrated.numbers()
    assert numbers["ppl_fitted"] == pytest.approx(math.exp(best), rel=1e-5)
    expected = ece(p.max(1).values.numpy(), (p.argmax(1) == t).numpy())
    assert numbers["ece_fitted"] == pytest.approx(expected, abs=1e-6)
    assert numbers["fitted_temperature"] == tau


@heads
@pytest.mark.parametrize("bayesian", [False, True], ids=["point", "bayesian"])
def test_scoring_disturbs_nothing(name, bayesian):
    model, ids = tiny(name, bayesian=bayesian), text(40)
    before, saved = {k: p.clone() for k, p in model.state_dict().items()}, ids.copy()
    results = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        state, numpy_state = torch.random.get_rng_state(), str(np.random.get_state())
        results.append(score(model, ids, 3, model.head.draws(2, 5), each=TemperedCalibration()))
        assert torch.equal(torch.random.get_rng_state(), state) and str(np.random.get_state()) == numpy_state
    assert results[0] == results[1]  # nor does the global generator change the score
    assert all(torch.equal(p, before[k]) for k, p in model.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in model.parameters()) and not model.training
    assert np.array_equal(ids, saved)


@heads
def test_bfloat16_products_with_float32_probabilities(name):
    model, ids = tiny(name), text(100)
    full = score(model, ids, 4)
    half = score(model, ids, 4, model.head.draws(1, 0, torch.bfloat16), dtype="bfloat16")
    if model.head.head.sparse:  # a random text has tokens of probability 0
        assert half.nll == full.nll == math.inf and half.zeros == pytest.approx(full.zeros, rel=0.1)
    else:
        assert half.nll != full.nll and half.nll == pytest.approx(full.nll, rel=0.02)
    with autocast("cpu", "bfloat16"), torch.no_grad():
        lp = model.head.log_probs(torch.randn(10, 16), model.head.draws(1, 0, torch.bfloat16))
    assert lp.dtype == torch.float32
    torch.testing.assert_close(lp.exp().sum(1), torch.ones(10), rtol=0, atol=1e-5)


# ---- metrics.py --------------------------------------------------------------------------------------------


def test_ece_bins_are_open_below_and_closed_above():
    edges = np.linspace(0, 1, 16)
    calibration = metrics.Calibration()
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
