"""The orders measure: middles, the distance to the two-sided truth, samplers against it, and its table."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from evaluate.scoring import score
from labs.known_language.tests.test_grammar import entropy_rate
from labs.known_language.tests.test_two_sided import documents
from labs.known_language.two_sided import CutDocuments, ForwardBackward, pair_shares
from labs.orders.asking import Asker, divergence, middle_bits
from labs.orders.measure import perplexities, surest_perplexities
from labs.orders.samplers import sampler_points
from labs.orders.task import plan
from labs.orders.tests.test_filling import q_of
from labs.orders.tests.test_trunk import asker, log_p, model_of, of_order, text
from labs.sequences.questions import FREE, KINDS, questions, spread
from tests.fixtures import prepare_folder, train_on
from tests.measure_contract import *  # noqa: F403
from tests.measure_contract import Example, rows_of


@pytest.fixture(scope="module")
def machine():
    return documents()


@torch.no_grad()
@pytest.mark.parametrize("gap", [1, 2, 3])
def test_a_middle(gap):
    """Given what stands to the left, or on both sides and in the gap so far."""
    windows, first = text(5 * 7).reshape(5, 7), (7 - gap) // 2
    usual, any_order = model_of("left_to_right"), model_of("any")
    p: dict[str, list[float]] = {"usual": [], "left": [], "both": []}
    for row in windows.tolist():
        whole = list(enumerate(row))
        for n in range(first, first + gap):
            both = whole[:first] + whole[first + gap :] + whole[first:n]
            p["usual"].append(log_p(usual, torch.tensor([row[:n]]))[0, -1, row[n]].exp().item())
            p["left"].append(q_of(any_order, whole[:n], n)[row[n]].item())
            p["both"].append(q_of(any_order, both, n)[row[n]].item())
    want = {name: pytest.approx(float(-np.log2(of).mean()), rel=1e-6) for name, of in p.items()}
    assert middle_bits(asker(usual), windows, gap) == {"left": want["usual"]}
    assert middle_bits(asker(any_order), windows, gap) == {"left": want["left"], "both": want["both"]}


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "both"])
def test_a_middle_of_masked_diffusion_is_a_bound(side):
    """The mean over what is hidden: of two places both at weight 1 or either at weight 2.
    From the left alone what stands after the gap is hidden, too."""
    model, row = model_of("masked", length=6), text(6)
    x = torch.from_numpy(row[None]).clone()
    mask, want = model.trunk.config.vocab_size, 0.0
    if side == "left":
        x[0, 4:] = mask
    for hidden, weight in (((2, 3), 1 / 2), ((2,), 2 / 4), ((3,), 2 / 4)):
        read = x.clone()
        read[0, list(hidden)] = mask
        lp = log_p(model, read)[0]
        want -= weight * sum(lp[i, row[i]].item() for i in hidden)
    got = middle_bits(asker(model), np.tile(row, (500, 1)), 2)[side]
    assert got == pytest.approx(want / 2 / np.log(2), rel=0.03)


@pytest.mark.parametrize("known", [0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("kind", KINDS)
def test_questions(machine, kind, known):
    """One place at least is free."""
    rng = np.random.default_rng(0)
    words = np.concatenate(machine.sample(200, rng))
    windows = spread(words, 6, 20)
    q = questions(CutDocuments(machine).log_probs, windows, known, kind)
    at = q.text != FREE
    count = min(19, round(known * 20))
    assert (at.sum(1) == count).all() and (q.text[at] == windows[at]).all()
    assert (np.take_along_axis(q.text, q.places, 1) == FREE).all()
    if kind == "next":
        assert (q.places[:, 0] == count).all() and at[:, :count].all()
    if kind == "middle":
        gaps = [np.flatnonzero(~row) for row in at]
        assert all(g[-1] - g[0] + 1 == len(g) for g in gaps)
        assert all(abs(int(g[0]) - (19 - int(g[-1]))) <= 1 for g in gaps)
    truth = ForwardBackward(machine).log_probs(q.text)
    assert truth.shape[0] == (~at).sum()
    np.testing.assert_allclose(np.exp(q.log_p).sum(2), 1)


def test_the_truth_is_no_distance_from_itself(machine, monkeypatch):
    words = np.concatenate(machine.sample(200, np.random.default_rng(0)))
    q = questions(CutDocuments(machine).log_probs, spread(words, 6, 20), 0.5, "random")
    p, asked = torch.from_numpy(np.exp(q.log_p)), Asker(None, [], "cpu", "float32")
    entropy = -(p * p.clamp(min=1e-300).log()).sum(2).mean().item()
    uniform = torch.full_like(p, 1 / p.shape[2])
    for answers, kl in ((p, 0), (uniform, np.log(p.shape[2]) - entropy)):
        monkeypatch.setattr("labs.orders.asking._answers", lambda *_: answers)
        assert divergence(asked, q)["kl"] == pytest.approx(kl, abs=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("order", ["any", "masked", "left_to_right"])
def test_a_model_is_asked_what_the_truth_is_asked(machine, order):
    model = model_of(order, length=12, vocab=machine.V)
    words = np.concatenate(machine.sample(100, np.random.default_rng(1)))
    kind = "next" if order == "left_to_right" else "random"
    q = questions(CutDocuments(machine).log_probs, spread(words, 4, 11), 0.5, kind)
    kl = []
    for row, places, log_p_true in zip(q.text, q.places, q.log_p):
        known = [(i, int(t)) for i, t in enumerate(row) if t != FREE]
        for place, truth in zip(places.tolist(), log_p_true):
            if order == "any":
                m = q_of(model, known, place)
            elif order == "masked":
                x = torch.full((1, 12), machine.V)  # what stands after a text is hidden, too
                x[0, :11] = torch.from_numpy(np.where(row == FREE, machine.V, row))
                m = log_p(model, x)[0, place].exp()
            else:
                m = log_p(model, torch.tensor([[t for _, t in known]]))[0, -1].exp()
            p = np.exp(truth)
            kl.append((p[p > 0] * (truth - m.log().numpy())[p > 0]).sum())
    assert divergence(asker(model), q)["kl"] == pytest.approx(np.mean(kl), rel=1e-5)


def test_what_the_truth_writes_is_valid_and_has_its_entropy(machine):
    """And its pairs of classes, which valid texts that are all alike have not."""
    words = np.concatenate(machine.sample(4000, np.random.default_rng(2)))
    windows, noise = spread(words, 300, 40), np.random.default_rng(0).integers(0, machine.V, (100, 40))
    truth = CutDocuments(machine)
    good, alike = truth.judge(windows), truth.judge(np.tile(windows[:1], (300, 1)))
    assert good["validity"] == 1 and good["true_nll"] == pytest.approx(entropy_rate(machine)[0], rel=0.05)
    assert truth.judge(noise)["validity"] < 0.9
    assert good["pair_tv"] < 0.03 and alike["validity"] == 1 and alike["pair_tv"] > 0.1
    np.testing.assert_allclose(pair_shares(machine).sum(), 1)


@pytest.mark.parametrize("order, most", [("any", 2 * 12), ("masked", 12)])
def test_points(machine, order, most):
    model = model_of(order, length=12, vocab=machine.V)
    found = sampler_points(asker(model), CutDocuments(machine), np.full((5, 12), FREE), seed=0, batch=3)
    assert len(found) == 5
    for p in found:
        assert 0 < p["evaluations"] <= most and p["seconds_a_token"] > 0
        assert p["tokens_a_pass"] == pytest.approx(12 / p["evaluations"])
    by = {p["sampler"]: p for p in found}
    if order == "any":
        assert by["random order"]["evaluations"] == by["left to right"]["evaluations"] == 12
        assert by["speculative"]["evaluations"] <= 12
    else:
        assert by["8 steps"]["evaluations"] <= 8 and by["a token a pass"]["evaluations"] == 12


@pytest.mark.parametrize("order", ["any", "masked"])
def test_exact_perplexities(order):
    """In batches as one by one, and from left to right that of a model of any order itself."""
    who = asker(model_of(order, length=5))
    windows = text(7 * 5).reshape(7, 5)
    ppl = surest_perplexities(who, windows, 0, batch=3)
    assert list(ppl) == [f"ppl_sure_{rule}" for rule in ("confidence", "left_to_right")]
    alone = [surest_perplexities(who, row[None], 0) for row in windows]
    for key, value in ppl.items():
        assert value == pytest.approx(math.exp(np.mean([np.log(one[key]) for one in alone])), rel=1e-9)
    nats = surest_perplexities(who, windows, 2)["nll_sure_left_to_right"]
    assert 0 < nats < 3 * 5
    if order == "any":
        from_the_left = plan(who.model.trunk.config, windows.ravel(), "left_to_right")
        s = score(who.model, from_the_left, draws=who.draws)
        assert ppl["ppl_sure_left_to_right"] == pytest.approx(math.exp(s.nll / s.tokens), rel=1e-6)


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    text, runs = prepare_folder(tmp_path_factory.mktemp("text") / "bpe300", "bpe300", seed=7), []
    for order, seed in (("left_to_right", 1), ("random", 1), ("random", 2), ("fractal", 1), ("masked", 1)):
        out = tmp_path_factory.mktemp("runs") / f"{order}-{seed}"
        runs.append(train_on(text, out, row=order, seed=seed, **of_order(order)))
    flags = [f"--data={text}", "--gaps=[1,4]", "--windows=20", "--exact=2", "--device=cpu"]
    return Example("orders", runs, flags, "--windows=19")


def test_the_table(measured):
    rows = {row["name"]: row for row in rows_of(measured)}
    assert rows["random-1"].keys() >= {"ppl", "ppl_random", "ppl_own", "left_1", "both_1", "left_4", "both_4"}
    left, masked, fractal = (rows[f"{name}-1"] for name in ("left_to_right", "masked", "fractal"))
    assert left.keys() & {"ppl", "ppl_random", "left_1", "both_1"} == {"ppl", "left_1"}
    assert "ppl" not in masked and masked["ppl_random"] == masked["ppl_own"]
    assert masked["ppl_sure_confidence"] > 1 and "ppl_sure_confidence" not in left
    assert fractal["ppl_own"] != fractal["ppl_random"]
    lines = measured.with_suffix(".md").read_text().splitlines()
    (line,) = [x for x in lines if x.startswith("| random ")]
    assert line.split("|")[2].strip() == "2" and "±" in line  # two seeds, one row


def test_the_token_after_the_last_sequence_is_not_scored():
    who, ids = asker(model_of("any")), text(3 * 8 + 1)
    data = lambda last: SimpleNamespace(ids=np.append(ids[:-1], last), given=0)
    of = lambda last, apart: perplexities(who, data(last), "x", apart)
    assert of(0, True) == of(1, True) and of(0, False) != of(1, False)
