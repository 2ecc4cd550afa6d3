"""The measures `truth` and `decoding` of a tiny run: the contract, and their numbers by other ways."""

import math

import numpy as np
import pytest
import torch
from nanoheads.labs.known_language import library
from scipy.special import entr, rel_entr

import table
from data.open import prepared
from data.tokens import SPLITS, open_tokens
from evaluate.decoding import Decoding, truncate
from labs.known_language.columns import COLUMNS
from labs.known_language.decoding.measure import ALONE, NUMBERS, VALUES, Points, point_settings
from labs.known_language.grammar.prepare import GrammarSettings
from labs.known_language.recovery import document_windows
from labs.known_language.tests.test_grammar import SOURCE
from labs.known_language.truth.measure import language_of
from tables.store import Store
from tests.fixtures import train_on
from tests.measure_contract import *  # noqa: F403
from tests.measure_contract import Example, rows_of
from training.run import load_model

MEASURES = {
    "truth": (["--texts=8", "--places=3", "--device=cpu"], "--texts=9"),
    "decoding": (["--windows=3", "--temperatures=1,1.5", "--device=cpu"], "--windows=2"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A prepared folder. Read only."""
    return prepared("grammar", "words", SOURCE, tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    """The out folder of a tiny run. Read only."""
    out = tmp_path_factory.mktemp("run") / "baseline"
    return train_on(folder, out, dataset="grammar", block_size=64, max_steps=40, learning_rate=1e-2)


@pytest.fixture(scope="module", params=MEASURES)
def example(request, run):
    flags, other = MEASURES[request.param]
    return Example(request.param, [run], flags, other)


@pytest.fixture(scope="module")
def rows(measured):
    """The rows of the measure, by name. Read only."""
    return {row["name"]: row for row in rows_of(measured)}


of_truth, of_decoding = (pytest.mark.parametrize("example", [m], indirect=True) for m in MEASURES)


@of_truth
def test_a_run_has_the_same_score_in_the_library(run, folder, rows):
    """And the library's splits are the prepared ones."""
    lang, (model, _) = library.Language(**vars(GrammarSettings.parse(SOURCE))), load_model(run)
    for split in SPLITS:
        assert np.array_equal(getattr(lang, split), open_tokens(folder / f"{split}.bin").ids), split
    theirs = lang.score(lambda x: model.log_probs(x, model.head.draws(1, 0)), context=64)
    ours, truth = rows["baseline"], rows["truth"]
    assert ours["split"] == theirs.pop("split") == "test"
    assert {key: ours[key] for key in theirs} == pytest.approx(theirs, rel=1e-4, abs=1e-6)
    keys = [c.key for c in COLUMNS if c.key != "coverage"]
    assert [truth[k] for k in keys] == pytest.approx([1, 0, 0, 0, 0, 1, 0, 1], abs=1e-9)
    assert ours["ppl_floor"] == pytest.approx(math.exp(ours["nll"] - ours["true_nll"])) and ours["tv"] > 0.1
    assert 0.9 <= truth["coverage"] < 1 and 0 < ours["validity"] < 1


@of_truth
@torch.no_grad()
def test_next_words_stand_beside_the_truth(run, folder, measured, rows):
    """In the view, from the rows alone: what the model says after the same words."""
    lang, (model, _) = language_of(open_tokens(folder / "test.bin")), load_model(run)
    row, page = rows["baseline"], measured.with_suffix(".md").read_text(encoding="utf-8")
    for k, (before, names) in enumerate(rows["truth"]["about"]["places"]):
        words = [name.removesuffix(" (observed)") for name in names]
        (observed,) = (i for i, name in enumerate(names) if name.endswith(" (observed)"))
        ids = [lang.machine.end if w == r"\n" else int(lang.encode(w)[0]) for w in words]
        text = torch.from_numpy(np.append(lang.machine.end, lang.encode(before)))[None]
        true, said = lang.log_probs(text)[0, -1].exp(), rows["truth"]["beliefs"][k]
        due = [*true[ids].tolist(), 1 - true[ids[observed]].item(), 0]
        assert said == pytest.approx(due) and said[0] == true.max()
        p = model.log_probs(text, model.head.draws(1, 0))[0, -1].exp()
        forbidden = p[true == 0].sum().item()
        want = [*p[ids].tolist(), 1 - p[ids[observed]].item() - forbidden, forbidden]
        assert row["beliefs"][k] == pytest.approx(want, abs=1e-5) and forbidden > 0
        assert f"{' '.join(before.splitlines()[-1].split()[-8:])}”" in page
        assert f"\n{before} {words[observed]}" in lang.decode(lang.test)
    assert k == 2 and "| truth " in page


@pytest.mark.slow
def test_a_model_comes_near_the_truth(tmp_path):
    """On a small language to less than 0.2 nats of KL(truth || model). Its estimate from the text alone,
    cross-entropy minus entropy, agrees."""
    folder = prepared("grammar", "words", SOURCE.replace("6000", "200000"), tmp_path / "data")
    size = dict(learning_rate=1e-2, min_lr=1e-3, block_size=64, batch_size=16, n_layer=2, n_embd=64, n_head=4)
    train_on(folder, tmp_path / "out", dataset="grammar", **size, max_steps=800, warmup_steps=40)
    assert table.main(["--measure=truth", str(tmp_path / "out"), f"--out={tmp_path / 'two'}"]) == 0
    row = Store(tmp_path / "two.jsonl").rows("truth")[-1]
    assert row["kl_truth_model"] < 0.2 and row["mass_invalid"] < 0.1
    assert row["nll"] - row["true_nll"] == pytest.approx(row["kl_truth_model"], abs=0.03)


@of_decoding
@torch.no_grad()
@pytest.mark.parametrize(
    "point", [dict(temperature=1.0), dict(temperature=0.6), dict(temperature=1.5, min_p=0.05)]
)
def test_a_row_is_what_brute_force_gives(rows, run, folder, point):
    """At each position of the chosen windows, one after the other, in float64."""
    language, (model, _) = language_of(open_tokens(folder / "test.bin")), load_model(run)
    plan = document_windows(np.flatnonzero(language.test == language.machine.end), 64)
    want = {key: [] for key in NUMBERS}
    for share in (1, 3, 5):  # the middles of its thirds
        start, stop = plan[len(plan) * share // 6]
        text = torch.from_numpy(language.test[None, start : start + stop].astype(np.int64))
        cut = truncate(model.log_probs(text, model.head.draws(1, 0))[0].double(), Decoding(**point)).numpy()
        for p, q in zip(language.log_probs(text)[0].exp().numpy(), cut):
            want["tv"].append(np.maximum(q - p, 0).sum())
            want["js"].append((rel_entr(p, (p + q) / 2) + rel_entr(q, (p + q) / 2)).sum() / 2)
            want["brier"].append(((p - q) ** 2).sum())
            want["lost"].append(p[q == 0].sum())
            want["entropy"].append(entr(q).sum())
            want["forbidden"].append(q[p == 0].sum())
    i, got = point_settings([1.0, 1.5], ALONE, VALUES).index(point), rows["baseline"]["test"]
    for key, values in want.items():
        assert got[key][i] == pytest.approx(np.mean(values), rel=1e-4, abs=1e-6), key
    assert len(point) == 1 or got["lost"][i] > 0.01


@of_decoding
def test_the_truth_is_at_no_distance_uncut_and_any_cut_takes_it_away(rows):
    truth = Points([rows["truth"]])
    uncut = truth.of("none", 1.0)[0]
    for key in ("tv", "js", "brier", "forbidden", "lost"):
        assert truth.values(uncut, key) == [0.0], key
    for sampler in VALUES:
        assert truth.best(sampler) == uncut, sampler
        strongest = truth.values(truth.of(sampler, 1.0)[1])[0]
        assert strongest > 0.05 and truth.values(truth.of(sampler, 1.0)[1], "forbidden") == [0.0], sampler


def made_up(validation: list[float], test: list[float], entropy: list[float], seed: int = 1) -> dict:
    """A row of one cut, min_p = .5 and .1, after temperature 1."""
    settings = {"temperatures": [1.0], "alone": [1.0], "cuts": {"min_p": [0.5, 0.1]}}
    numbers = {key: test for key in NUMBERS} | {"entropy": entropy}
    splits = {"validation": {"tv": validation, "entropy": entropy}, "test": numbers}
    return {"name": f"a-{seed}", "row": "a", "seed": seed, "settings": settings, **splits}


def test_a_value_is_chosen_on_the_validation_split_over_all_seeds():
    """The test split, where another is better, does not count, nor does one seed for itself."""
    one = made_up([0.3, 0.1, 0.5], [0.3, 0.9, 0.2], [3, 1, 2])
    g = Points([one, made_up([0.3, 0.4, 0.9], [0.3, 0.8, 0.2], [3, 1, 2], 2)])
    assert g.best("min_p") == 1 and g.points[1]["min_p"] == 0.5 and g.values(1) == [0.9, 0.8]
    g = Points([made_up([0.2, 0.2, 0.5], [0.3, 0.1, 0.1], [3, 1, 2])])
    assert g.best("min_p") == 0  # a tie: no cut


def test_at_equal_entropy_it_is_between_the_points():
    one = made_up([0] * 3, [0.3, 0.9, 0.2], [3.0, 1.0, 2.0])
    g = Points([one, made_up([0] * 3, [0.4, 0.8, 0.2], [3.5, 1.0, 2.0], 2)])
    assert g.at_entropy("min_p", 1.0, 2.5) == pytest.approx([0.25, 0.2 + 0.2 / 3])
    assert g.at_entropy("min_p", 1.0, 1.25) == pytest.approx([0.725, 0.65])
    assert g.at_entropy("min_p", 1.0, 3.2) == g.at_entropy("min_p", 1.0, 0.9) == []
