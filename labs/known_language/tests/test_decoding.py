"""The decoding measure: its numbers against brute force, where it chooses and where it judges, its table."""

import numpy as np
import pytest
import torch
from scipy.special import entr, rel_entr

from common.errors import UserError
from data.open import prepared
from data.tokens import open_tokens
from evaluate.decoding import Decoding, truncate
from labs.known_language.decoding.measure import ALONE, NUMBERS, VALUES, Points, point_settings
from labs.known_language.recovery import document_windows
from labs.known_language.truth.measure import language_of
from table import main
from tables.store import Store
from tests.fixtures import train_on
from training.run import load_model

SOURCE = "seed=3 train=30000 validation=3000 test=3000 nouns=60 verbs=30 adjectives=30 adverbs=10 themes=3"


def test_a_run_whose_truth_nobody_knows_is_refused(trained):
    with pytest.raises(UserError, match="truth"):
        main(["--measure=decoding", str(trained)])


# ---- on a run ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A prepared folder of the known language. Read only."""
    return prepared("grammar", "words", SOURCE, tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    """The out folder of a tiny run. Read only."""
    out = tmp_path_factory.mktemp("runs") / "baseline"
    train_on(folder, out, dataset="grammar", block_size=64, max_steps=60, learning_rate=1e-2)
    return out


@pytest.fixture(scope="module")
def rows(run, tmp_path_factory):
    """The rows of the run and of the truth, by name. Read only."""
    out = tmp_path_factory.mktemp("table") / "decoding"
    assert main(["--measure=decoding", str(run), "--windows=3", "--device=cpu", f"--out={out}"]) == 0
    return {row["name"]: row for row in Store(out.with_suffix(".jsonl")).rows("decoding")}


@torch.no_grad()
@pytest.mark.parametrize(
    "point", [{"temperature": 1.0}, {"temperature": 0.6}, {"temperature": 1.5, "min_p": 0.05}]
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


def test_the_truth_is_at_no_distance_uncut_and_any_cut_takes_it_away(rows):
    truth = Points([rows["truth"]])
    uncut = truth.of("none", 1.0)[0]
    for key in ("tv", "js", "brier", "forbidden", "lost"):
        assert truth.values(uncut, key) == [0.0], key
    for sampler in VALUES:
        assert truth.best(sampler) == uncut, sampler
        strongest = truth.values(truth.of(sampler, 1.0)[1])[0]
        assert strongest > 0.05 and truth.values(truth.of(sampler, 1.0)[1], "forbidden") == [0.0], sampler


# ---- choosing and judging ----------------------------------------------------------------------------------


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
