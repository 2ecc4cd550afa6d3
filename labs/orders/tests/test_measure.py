"""The orders measure: middles, the distance to the two-sided truth, samplers against it, and its table."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from common.errors import UserError
from evaluate.measure import measure_runs
from evaluate.scoring import score
from evaluate.store import Store
from evaluate.views import mean
from labs.known_language.tests.test_two_sided import documents
from labs.known_language.two_sided import CutDocuments, ForwardBackward, pair_shares
from labs.orders import measure as orders
from labs.orders.asking import Asker, divergence, middle_bits
from labs.orders.measure import OrdersMeasure, perplexities, surest_perplexities
from labs.orders.samplers import points
from labs.orders.tests.test_filling import q_of
from labs.orders.tests.test_trunk import asker, log_p, model_of, of_order, text
from labs.sequences.questions import FREE, KINDS, questions, spread
from table import main
from tests.fixtures import TINY, train_on
from training.run import Run


@pytest.fixture(scope="module")
def machine():
    return documents()


def bits_of(p: list[float]) -> float:
    return float(-np.log2(p).mean())


# ---- middles -----------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("gap", [1, 2, 3])
def test_a_middle_from_left_to_right(gap):
    """Of a left-to-right model and of one of any order: the same places, given what stands to the left."""
    windows = text(5 * 7).reshape(5, 7)
    first = (7 - gap) // 2
    usual, any_order = model_of("left_to_right"), model_of("any")
    want: dict[str, list[float]] = {"usual": [], "any": []}
    for row in windows:
        for n in range(first, first + gap):
            x = torch.from_numpy(row[None, :n])
            want["usual"].append(log_p(usual, x)[0, -1, row[n]].exp().item())
            known = list(zip(range(n), row.tolist()))
            want["any"].append(q_of(any_order, known, n)[row[n]].item())
    got = middle_bits(asker(usual), windows, gap)
    assert got == {"left": pytest.approx(bits_of(want["usual"]), rel=1e-6)}
    assert middle_bits(asker(any_order), windows, gap)["left"] == pytest.approx(
        bits_of(want["any"]), rel=1e-6
    )


@torch.no_grad()
@pytest.mark.parametrize("gap", [1, 2, 3])
def test_a_middle_given_both_sides(gap):
    model, windows = model_of("any"), text(4 * 7).reshape(4, 7)
    first, p = (7 - gap) // 2, []
    for row in windows.tolist():
        known = [(i, t) for i, t in enumerate(row) if not first <= i < first + gap]
        for n in range(first, first + gap):
            p.append(q_of(model, known, n)[row[n]].item())
            known.append((n, row[n]))
    assert middle_bits(asker(model), windows, gap)["both"] == pytest.approx(bits_of(p), rel=1e-6)


@torch.no_grad()
def test_a_middle_of_masked_diffusion_is_a_bound():
    """One token: its own distribution, with the rest known, and with all after it hidden."""
    model, windows = model_of("masked", length=5), text(6 * 5).reshape(6, 5)
    both, left = [], []
    for row in windows:
        x = torch.from_numpy(row[None]).clone()
        x[0, 2] = model.trunk.config.vocab_size
        both.append(log_p(model, x)[0, 2, row[2]].exp().item())
        x[0, 3:] = model.trunk.config.vocab_size
        left.append(log_p(model, x)[0, 2, row[2]].exp().item())
    got = middle_bits(asker(model), windows, 1)
    assert got == {"left": pytest.approx(bits_of(left)), "both": pytest.approx(bits_of(both))}


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "both"])
def test_the_bound_of_a_middle_of_two_tokens(side):
    """Its mean over what is hidden: both at weight 1, or either of them at weight 2."""
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


# ---- the truth given both sides ----------------------------------------------------------------------------


@pytest.mark.parametrize("known", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("kind", KINDS)
def test_questions(machine, kind, known):
    rng = np.random.default_rng(0)
    words = np.concatenate(machine.sample(200, rng))
    windows = spread(words, 6, 20)
    q = questions(CutDocuments(machine).log_probs, windows, known, kind)
    at = q.text != FREE
    assert (at.sum(1) == round(known * 20)).all() and (q.text[at] == windows[at]).all()
    assert (np.take_along_axis(q.text, q.places, 1) == FREE).all()
    if kind == "next":
        assert (q.places[:, 0] == at.sum(1)).all() and at[:, : round(known * 20)].all()
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
    p = torch.from_numpy(np.exp(q.log_p))
    monkeypatch.setattr("labs.orders.asking._answers", lambda asked, text, places: p)
    asked = Asker(None, [], "cpu", "float32")
    assert divergence(asked, q) == {"kl": pytest.approx(0, abs=1e-12), "tv": pytest.approx(0, abs=1e-12)}
    uniform = torch.full_like(p, 1 / p.shape[2])
    monkeypatch.setattr("labs.orders.asking._answers", lambda asked, text, places: uniform)
    entropy = -(p * p.clamp(min=1e-300).log()).sum(2).mean().item()
    assert divergence(asked, q)["kl"] == pytest.approx(np.log(p.shape[2]) - entropy)


@torch.no_grad()
@pytest.mark.parametrize("order", ["any", "masked", "left_to_right"])
def test_a_model_is_asked_what_the_truth_is_asked(machine, order):
    model = model_of(order, length=12, vocab=machine.V)
    words = np.concatenate(machine.sample(100, np.random.default_rng(1)))
    windows = spread(words, 4, 11)
    q = questions(
        CutDocuments(machine).log_probs, windows, 0.5, "next" if order == "left_to_right" else "random"
    )
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


# ---- samplers ----------------------------------------------------------------------------------------------


def test_what_the_truth_writes_is_valid_and_has_its_entropy(machine):
    """And its pairs of classes, which valid texts that are all alike have not."""
    words = np.concatenate(machine.sample(4000, np.random.default_rng(2)))
    windows, noise = spread(words, 300, 40), np.random.default_rng(0).integers(0, machine.V, (100, 40))
    truth = CutDocuments(machine)
    good, alike = truth.judge(windows), truth.judge(np.tile(windows[:1], (300, 1)))
    assert good["validity"] == 1 and good["true_nll"] == pytest.approx(machine.entropy_rate, rel=0.05)
    assert truth.judge(noise)["validity"] < 0.9
    assert good["pair_tv"] < 0.03 and alike["validity"] == 1 and alike["pair_tv"] > 0.1
    np.testing.assert_allclose(pair_shares(machine).sum(), 1)


@pytest.mark.parametrize("order, most", [("any", 2 * 12), ("masked", 12)])
def test_points(machine, order, most):
    model = model_of(order, length=12, vocab=machine.V)
    found = points(asker(model), CutDocuments(machine), np.full((5, 12), FREE), seed=0, batch=3)
    assert len(found) == 5
    for p in found:
        assert 0 < p["evaluations"] <= most
        assert p["tokens_a_pass"] == pytest.approx(12 / p["evaluations"])
        # of a few texts none may have a document's start, and then none is judged
        assert 0 <= p.get("validity", 0) <= 1 and p["seconds_a_token"] > 0
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
        from_the_left = who.model.trunk.plans(windows.ravel())["left_to_right"]
        s = score(who.model, windows.ravel(), draws=who.draws, plan=from_the_left)
        assert ppl["ppl_sure_left_to_right"] == pytest.approx(math.exp(s.nll / s.tokens), rel=1e-6)


# ---- the table ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(token_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for order, seed in (("left_to_right", 1), ("random", 1), ("random", 2), ("fractal", 1), ("masked", 1)):
        about = dict(row=order, seed=seed, tokenizer=TINY["tokenizer"], **of_order(order))
        train_on(token_folder, folder / f"{order}-{seed}", **about)
    return folder


def test_the_table(runs, token_folder, tmp_path, capsys):
    paths = [str(p) for p in sorted(runs.iterdir())]
    out = tmp_path / "orders"
    flags = ["--measure=orders", f"--data={token_folder}", "--gaps=[1,4]", "--windows=20", f"--out={out}"]
    assert main([*paths, *flags, "--exact=2"]) == 0
    table = capsys.readouterr().out
    assert table.strip() == out.with_name("orders.md").read_text().strip()
    rows = {r["name"]: r for r in Store(tmp_path / "orders.jsonl").rows("orders")}
    assert rows["random-1"].keys() >= {"ppl", "ppl_random", "ppl_own", "left_1", "both_1", "left_4", "both_4"}
    assert rows["left_to_right-1"].keys() & {"ppl", "ppl_random", "left_1", "both_1"} == {"ppl", "left_1"}
    assert "ppl" not in rows["masked-1"] and rows["masked-1"]["ppl_random"] == rows["masked-1"]["ppl_own"]
    assert (
        rows["masked-1"]["ppl_sure_confidence"] > 1 and "ppl_sure_confidence" not in rows["left_to_right-1"]
    )
    assert rows["fractal-1"]["ppl_own"] != rows["fractal-1"]["ppl_random"]
    (line,) = [x for x in table.splitlines() if x.startswith("| random ")]
    assert line.split("|")[2].strip() == "2" and "±" in line  # two seeds, one row


def test_the_token_after_the_last_sequence_is_not_scored():
    who, ids = asker(model_of("any")), text(3 * 8 + 1)
    data = lambda last: SimpleNamespace(ids=np.append(ids[:-1], last), given=0)
    of = lambda last, apart: perplexities(who, data(last), "x", apart)
    assert of(0, True) == of(1, True) and of(0, False) != of(1, False)


def test_runs_sample_with_seeds_of_their_own(runs, token_folder, monkeypatch):
    """Or the interval over them would lack what sampling varies."""
    seeds, vocab = [], Run(runs / "random-1").config.vocab_size

    def seen(asked, truth, begun, seed):
        seeds.append(seed)
        return []

    class Known:
        def judge(self, texts):
            return {"validity": 1.0, "judged": len(texts)}

        def log_probs(self, text, asked):
            return np.full((asked.sum(), vocab), -np.log(vocab))

    monkeypatch.setattr(orders, "two_sided", lambda *_: Known())
    monkeypatch.setattr(orders, "points", seen)
    c = orders.OrdersConfig(
        [str(runs / f"random-{i}") for i in (1, 2)], data=str(token_folder), samplers=True, truth_windows=2
    )
    *rows, truth = measure_runs(OrdersMeasure(), OrdersMeasure().open(c), Store(None))
    assert len(set(seeds)) == 2 and truth["reference"] and truth["judgements"]["judged"] > 1
    assert all(row["kl_random_50%"] > 0 and row["samplers"] == [] for row in rows)


@pytest.mark.parametrize(
    "values, shown",
    [
        ([50.25, 49.85, 50.65], "50.25 ± 0.99"),  # 4.303 * .4 / sqrt(3)
        ([0.09, 0.091, 0.092], "0.0910 ± 0.0025"),
        ([100.0, 200, 300], "200 ± 248"),
        ([7.888, 7.888], "7.888"),
        ([0.045108595065168504, 0.045108595065168497, 0.04510859506516850], "0.04511"),
        ([0.0, 0.0], "0"),
        ([7.888], "7.888"),
        ([], "-"),
    ],
)
def test_a_mean_has_the_places_of_its_interval(values, shown):
    assert mean(values) == shown


def test_a_share_that_leaves_nothing_free_leaves_one_place(machine):
    words = np.concatenate(machine.sample(100, np.random.default_rng(1)))
    q = questions(CutDocuments(machine).log_probs, spread(words, 4, 4), 0.99, "random")
    assert ((q.text == FREE).sum(1) == 1).all()
    with pytest.raises(ValueError, match="fewer than one window of 40"):
        spread(words[:20], 4, 40)


def test_the_truth_of_a_whole_split_stands_beside_nothing_of_a_part():
    row = {"row": "a", "seed": 1, "nll": 2.0, "nll_own": 3.0, "nll_sure_confidence": 4.0, "left_4": 1.0}
    [table] = orders.tables([row], {"nll": 1.5})
    assert table.lines[-1] == ["truth", "", "1.5", "1.5", "", ""]


@pytest.mark.parametrize(
    "flags, says",
    [
        (["--rows=['masked_diffusion']"], "masked"),
        (["--rows=['sigma_gpt --trunk_args.order=fractal']"], "any_order"),
        (["--measure=orders", "--evaluate=--gaps=[400]"], "gaps"),
        (["--measure=orders", "--evaluate=--gaps=[0]"], "gaps"),
        (["--measure=orders", "--evaluate=--known=[0.5,1]"], "known"),
        (["--measure=orders", "--evaluate=--samplers"], "samplers"),
    ],
)
def test_mistakes_are_found_before_any_training(tmp_path, flags, says):
    start = ["--name=x", "--rows=['baseline']", f"--results={tmp_path}", f"--runs={tmp_path}", "--commands"]
    with pytest.raises(UserError, match=says):
        main([*start, *flags])
