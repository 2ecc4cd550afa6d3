"""The decoding measure: its numbers against brute force, where it chooses and where it judges, and its
table."""

import math
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from measures.decoding import ALONE, NUMBERS, VALUES, DecodingMeasure, Points, grid, measured, numbers, place
from measures.decoding_texts import NGRAM, Contexts, Sampler, brier_lm

from data.held_out import open_held_out, truth_path
from data.prepared import prepared
from evaluation import figures
from evaluation.decoding import Decoding
from evaluation.scoring import document_blocks
from evaluation.truncation import truncate
from evaluation.windows import document_windows
from measures.store import Store
from runtime.checkpoint import Degenerate, load_model
from runtime.errors import UserError
from table import main
from tests.fixtures import TINY, train_in_process
from train import TrainConfig

SOURCE = "seed=3 train=30000 validation=3000 test=3000 nouns=60 verbs=30 adjectives=30 adverbs=10 themes=3"
KEYS = [key for key, _, _ in NUMBERS]
DIGITS = 5e-3  # a row has three, and five of what a value is chosen by
# two positions of four words; the truth forbids the last two words, and then the last
P = [[0.6, 0.4, 0.0, 0.0], [0.1, 0.2, 0.7, 0.0]]
M = [[0.5, 0.2, 0.2, 0.1], [0.25, 0.25, 0.25, 0.25]]


def at_hand(p=P, m=M, points=({"temperature": 1.0}, {"temperature": 1.0, "top_k": 2}), kind=numbers):
    truth = SimpleNamespace(probs=lambda positions: np.array(p)[positions])
    blocks = iter([(np.arange(len(p)), torch.tensor(m, dtype=torch.float64).log())])
    return measured(blocks, truth, list(points), kind)


def test_the_numbers_of_one_position_by_hand():
    """top_k = 2 keeps three words, since two tie: q = (5, 2, 2) / 9."""
    got = {key: values[1] for key, values in at_hand(P[:1], M[:1]).items()}
    q, p = [5 / 9, 2 / 9, 2 / 9], [0.6, 0.4, 0.0]

    def kl_from_the_middle(x):
        return sum(a * math.log(a / ((a + b) / 2)) for a, b in zip(x, p if x is q else q) if a > 0)

    want = {
        "tv": 2 / 9,
        "js": (kl_from_the_middle(p) + kl_from_the_middle(q)) / 2,
        "brier": sum((a - b) ** 2 for a, b in zip(q, p)),
        "forbidden": 2 / 9,
        "removed": 0.1 / 0.3,
        "lost": 0.0,
        "entropy": -sum(a * math.log(a) for a in q),
    }
    assert got == pytest.approx(want, rel=DIGITS) and [*got] == KEYS


def test_the_numbers_are_means_over_positions_and_what_is_removed_is_a_share_of_the_mass():
    each = [at_hand(P[i : i + 1], M[i : i + 1]) for i in (0, 1)]
    both = at_hand()
    for key in set(KEYS) - {"removed"}:
        assert both[key] == pytest.approx(np.mean([e[key] for e in each], 0).tolist(), rel=2 * DIGITS), key
    # of the forbidden .3 and .25 the cut takes .1 and none: all four words of the second tie
    assert both["removed"] == pytest.approx([0, 0.1 / 0.55], rel=DIGITS)
    chosen = at_hand(kind=place)
    assert chosen == {key: both[key] for key in ("tv", "entropy")}


def test_what_is_cut_is_lost():
    got = at_hand(
        [[0.6, 0.4, 0.0, 0.0]],
        [[0.2, 0.5, 0.2, 0.1]],
        [{"temperature": 1.0}, {"temperature": 1.0, "top_k": 1}],
    )
    assert (got["lost"][1], got["removed"][1], got["tv"][1]) == (0.6, 1.0, 0.6)
    assert got["entropy"][1] == got["forbidden"][1] == 0


# ---- on a run ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A prepared folder of the known language. Read only."""
    return prepared("grammar", "words", SOURCE, tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def runs(folder, tmp_path_factory):
    """The out folders of two seeds of a tiny run. Read only."""
    out = []
    for seed in (1, 2):
        out.append(tmp_path_factory.mktemp("runs") / f"baseline-{seed}")
        changes = dict(name=out[-1].name, row="baseline", seed=seed, dataset="grammar", tokenizer="words")
        changes |= dict(out_dir=str(out[-1]), block_size=64, max_steps=60, learning_rate=1e-2)
        assert train_in_process(TrainConfig(**TINY | changes), folder) == 0
    return out


@pytest.fixture(scope="module")
def rows(runs, tmp_path_factory):
    """The rows of both, by name, and where the table is. Read only."""
    out = tmp_path_factory.mktemp("table") / "decoding"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "write", lambda fig, path: [])
        assert (
            main(["--measure=decoding", *map(str, runs), "--windows=3", "--device=cpu", f"--out={out}"]) == 0
        )
    return {row["name"]: row for row in Store(out.with_suffix(".jsonl")).rows("decoding")}, out


@torch.no_grad()
@pytest.mark.parametrize(
    "point", [{"temperature": 1.0}, {"temperature": 0.6}, {"temperature": 1.5, "min_p": 0.05}]
)
def test_a_row_is_what_brute_force_gives(rows, runs, folder, point):
    """At each position of the chosen windows, one after the other, in float64."""
    test, (model, _) = open_held_out(folder / "test.bin"), load_model(runs[0])
    plan = document_windows(np.flatnonzero(test.ids == test.truth.end), 64)
    plan = [plan[len(plan) * share // 6] for share in (1, 3, 5)]  # the middles of its thirds
    tv, lost, entropy, forbidden, removed, total = [], [], [], 0.0, 0.0, 0.0
    for at, log_m in document_blocks(model, test.ids, plan, model.head.draws(1, 0), "cpu", "float32"):
        m = truncate(log_m.double(), Decoding(temperature=point["temperature"])).numpy()
        cut = truncate(log_m.double(), Decoding(**point)).numpy()
        for p, m_row, q in zip(test.truth.probs(at), m, cut):
            tv.append(np.maximum(q - p, 0).sum())
            lost.append(p[q == 0].sum())
            entropy.append(-(q[q > 0] * np.log(q[q > 0])).sum())
            forbidden += q[p == 0].sum()
            removed, total = removed + m_row[(p == 0) & (q == 0)].sum(), total + m_row[p == 0].sum()
    want = {"tv": np.mean(tv), "lost": np.mean(lost), "entropy": np.mean(entropy)}
    want |= {"forbidden": forbidden / len(tv), "removed": removed / total}
    i = grid([1.0, 1.5], ALONE, VALUES).index(point)
    got = rows[0]["baseline-1"]["test"]
    assert {key: got[key][i] for key in want} == pytest.approx(want, rel=DIGITS, abs=1e-6)
    assert len(point) == 1 or min(got["removed"][i], got["lost"][i]) > 0.01


def test_the_truth_is_at_no_distance_uncut_and_any_cut_takes_it_away(rows):
    truth = Points([rows[0]["truth"]])
    uncut = truth.uncut(1.0)
    for key in ("tv", "js", "brier", "forbidden", "removed", "lost"):
        assert truth.values(uncut, key) == [0.0], key
    for sampler in VALUES:
        assert truth.best(sampler) == uncut, sampler
        strongest = truth.values(truth.of(sampler, 1.0)[1])[0]
        assert strongest > 0.05 and truth.values(truth.of(sampler, 1.0)[1], "forbidden") == [0.0], sampler


def test_the_same_command_keeps_its_rows(rows, runs, capsys, monkeypatch):
    monkeypatch.setattr(figures, "write", lambda fig, path: [])
    _, out = rows
    before = out.with_suffix(".jsonl").read_bytes()
    assert main(["--measure=decoding", *map(str, runs), "--windows=3", "--device=cpu", f"--out={out}"]) == 0
    assert capsys.readouterr().err.count("kept from") == 2
    assert out.with_suffix(".jsonl").read_bytes() == before


def test_the_view_is_made_anew_of_the_rows(rows, monkeypatch):
    each, out = rows
    written = DecodingMeasure().view(Store(out.with_suffix(".jsonl")).rows("decoding"))
    assert out.with_suffix(".md").read_text(encoding="utf-8") == written.markdown
    best, heated, cool, hot, level, lower = written.grids
    assert len(best.lines) == 2 * (2 + len(VALUES)) and len(heated.lines) == 2 * (1 + len(VALUES))
    tv = [each[name]["test"]["tv"][ALONE.index(1.0)] for name in ("baseline-1", "baseline-2")]
    assert best.lines[0][:3] == ["baseline", "none", "-"]
    assert best.lines[0][3].split(" ± ")[0] == f"{np.mean(tv):.{len(best.lines[0][3].split(' ± ')[0]) - 2}f}"
    assert {line[0] for line in best.lines} == {"baseline", "truth"}
    brier = [each[name]["texts"][0]["brier_lm"] for name in ("baseline-1", "baseline-2")]
    assert cool.lines[0][:2] == ["baseline", "none"]
    assert float(cool.lines[0][2].split(" ± ")[0]) == pytest.approx(np.mean(brier), rel=0.1)
    assert [line[:2] for line in cool.lines if line[0] == "truth"] == [["truth", "none"]]
    assert 1 < len(hot.lines) <= 1 + len(VALUES)


def test_the_figure_has_a_line_for_each_sampler(rows, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(figures, "write", lambda fig, path: drawn.append(fig) or [path])
    assert DecodingMeasure().draw([*rows[0].values()], tmp_path / "x") == [tmp_path / "x"]
    (ax,) = [ax for ax in drawn[0].axes if ax.get_title()]
    assert ax.get_title() == "baseline" and len(ax.lines) == 2 + len(VALUES)


# ---- what is written ---------------------------------------------------------------------------------------


def test_brier_lm_is_that_of_all_pairs():
    """Each 2-gram as often as the sampler writes it."""
    p = {(0, 0): 0.5, (0, 1): 0.125, (1, 0): 0.125, (1, 1): 0.25}
    q = {(0, 0): 0.25, (0, 1): 0.5, (1, 0): 0.125, (1, 1): 0.125}
    want = []
    for n in (1, 2):
        laws = [{}, {}]
        for law, short in zip((p, q), laws):
            for x, share in law.items():
                short[x[:n]] = short.get(x[:n], 0) + share
        want.append(sum(2 * laws[0][x] * laws[1][x] - laws[1][x] ** 2 for x in laws[1]))
    samples = [x for x, share in q.items() for _ in range(round(8 * share))]

    def steps(law):
        first = [law[x[0], 0] + law[x[0], 1] for x in samples]
        return np.array([[a, law[x] / a] for x, a in zip(samples, first)])

    assert brier_lm(steps(q), steps(p)) == pytest.approx(100 * math.prod(want) ** 0.5)
    surest = np.ones((8, 2))  # always the same tokens, which the truth seldom has
    assert brier_lm(surest, 0.3 * surest) == 0.0


def test_what_a_continuation_has_in_the_truth(folder):
    test = open_held_out(folder / "test.bin")
    at = np.array([70, 200, 500])
    new = np.stack([test.ids[i : i + 6] for i in at]).astype(np.int64)
    want = np.stack([test.truth.probs(at + i)[np.arange(3), new[:, i]] for i in range(6)], 1)
    got = test.truth.chances(at, new)
    assert got == pytest.approx(want) and (got > 0).all()
    new[1, 2] = np.flatnonzero(test.truth.probs(at[1:2] + 2)[0] == 0)[0]
    new[1, 3] = test.truth.end
    got = test.truth.chances(at, new)
    assert got[[0, 2]] == pytest.approx(want[[0, 2]]) and got[1, :2] == pytest.approx(want[1, :2])
    assert not got[1, 2:].any()  # a document that ends after a forbidden word makes nothing good


@torch.no_grad()
def test_what_is_written_has_the_probabilities_it_was_drawn_with(runs, folder):
    test, (model, _) = open_held_out(folder / "test.bin"), load_model(runs[0])
    near = Contexts.spread(test, 9, 32, NGRAM)
    assert (near.tokens == test.truth.end).any(1).all()
    assert (test.ids[near.positions[:, None] + np.arange(NGRAM)] == near.human).all()
    cut = Decoding(temperature=1.3, top_k=5)
    sampler = Sampler(model, model.head.draws(1, 0), cut, 7, torch.device("cpu"), "float32")
    steps = list(sampler.write(near.tokens, NGRAM))
    whole = torch.cat((torch.from_numpy(near.tokens), torch.stack([token for token, _ in steps], 1)), 1)
    log_p = model.head.log_probs(model.trunk(whole)[:, -NGRAM - 1 : -1].flatten(0, 1), sampler.draws)
    want = truncate(log_p, cut).unflatten(0, (-1, NGRAM)).gather(2, whole[:, -NGRAM:, None])[..., 0]
    got = torch.stack([sampler.probs(hidden, token) for token, hidden in steps], 1)
    assert got.numpy() == pytest.approx(want.numpy(), rel=1e-4) and (got > 0).all()


def test_a_row_has_the_texts_of_its_own_best_values(rows):
    each, _ = rows
    row = each["baseline-1"]
    g = Points([row])
    assert [
        {k: text[k] for k in text if k in ("temperature", *VALUES)} for text in row["texts"]
    ] == g.best_points()
    assert g.texts("min_p", 1.5, "validity") > g.texts("none", 1.5, "validity")
    truth = each["truth"]["texts"][0]
    assert truth["validity"] == 1 and truth["brier_lm"] > row["texts"][0]["brier_lm"]


# ---- choosing and judging ----------------------------------------------------------------------------------


def made_up(validation: list[float], test: list[float], entropy: list[float], seed: int = 1) -> dict:
    """A row of one cut, min_p = .5 and .1, after temperature 1."""
    settings = {"temperatures": [1.0], "alone": [1.0], "cuts": {"min_p": [0.5, 0.1]}}
    numbers = {key: test for key in KEYS} | {"entropy": entropy}
    splits = {"validation": {"tv": validation, "entropy": entropy}, "test": numbers}
    return {"name": f"a-{seed}", "row": "a", "seed": seed, "settings": settings, **splits}


def test_a_value_is_chosen_on_the_validation_split_over_all_seeds():
    """The test split, where another is better, does not count, nor does one seed for itself."""
    g = Points(
        [
            made_up([0.3, 0.1, 0.5], [0.3, 0.9, 0.2], [3, 1, 2]),
            made_up([0.3, 0.4, 0.9], [0.3, 0.8, 0.2], [3, 1, 2], 2),
        ]
    )
    assert g.best("min_p") == 1 and g.setting(1, "min_p") == "0.5"
    assert g.values(1) == [0.9, 0.8]
    g = Points([made_up([0.2, 0.2, 0.5], [0.3, 0.1, 0.1], [3, 1, 2])])
    assert g.best("min_p") == 0 and g.setting(0, "min_p") == "-"  # a tie: no cut


def test_at_equal_entropy_it_is_between_the_points():
    g = Points(
        [
            made_up([0] * 3, [0.3, 0.9, 0.2], [3.0, 1.0, 2.0]),
            made_up([0] * 3, [0.4, 0.8, 0.2], [3.5, 1.0, 2.0], 2),
        ]
    )
    assert g.at_entropy("min_p", 1.0, 2.5) == pytest.approx([0.25, 0.2 + 0.2 / 3])
    assert g.at_entropy("min_p", 1.0, 1.25) == pytest.approx([0.725, 0.65])
    assert g.at_entropy("min_p", 1.0, 3.2) == g.at_entropy("min_p", 1.0, 0.9) == []


# ---- refusals ----------------------------------------------------------------------------------------------


def test_a_corpus_without_a_truth_is_refused(trained, runs, folder, tmp_path):
    with pytest.raises(UserError, match="a language whose truth is known"):
        main(["--measure=decoding", str(trained)])
    other = shutil.copytree(folder, tmp_path / "words")
    truth_path(other / "test.bin").unlink()
    with pytest.raises(UserError, match="a language whose truth is known .*, not .*words"):
        main(["--measure=decoding", str(runs[0]), f"--data={other}"])


def test_a_table_without_a_truth_is_refused_before_any_training(tmp_path):
    argv = ['--rows=["baseline"]', "--overlay=brief", "--measure=decoding", f"--runs={tmp_path}/runs"]
    with pytest.raises(UserError, match="a language whose truth is known .*, not wikitext103"):
        main([*argv, f"--results={tmp_path}", "--name=x"])
    assert not (tmp_path / "runs").exists()


def test_a_model_whose_numbers_are_none_has_a_problem():
    with pytest.raises(Degenerate):
        at_hand(m=[[math.nan] * 4] * 2)


@pytest.mark.parametrize("flag", ["--temperatures=[0]", "--temperatures=[-1]", "--windows=0", "--texts=1"])
def test_a_value_that_cannot_work_is_refused(runs, flag):
    with pytest.raises(UserError, match=f"^{flag[2:].split('=')[0]} = "):
        main(["--measure=decoding", str(runs[0]), flag])
