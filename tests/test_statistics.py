"""What a table may claim: intervals that cover, stars for all that cannot be told from the best, texts of one
length, independent samples, what each row has spent, and each row's perplexity over the first one's."""

import json
import math
import shutil
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from data.tokens import open_tokens
from evaluate.diversity import common_words, text_metrics
from tables import ratios
from tables.columns import Column
from tables.statistics import Estimate, best_group, half_sampling_interval, holm, paired_p
from tables.summary import best_rows, grouped, numbers_of, worse
from tables.text import TextMeasure
from tests.fixtures import TINY, train_on
from training.run import Progress, Run, RunConfig, training_cost

PPL = Column("ppl_eps", "PPL_eps", ".2f", "low", "")
BLEU = Column("self_bleu", "Self-BLEU", ".2f", "human", "")
STEPS = Column("steps", "steps", ".0f", "", "")


def test_half_sampling_covers_the_texts_of_a_reference():
    """About 95% of the intervals hold the truth: of the mean length of n texts, over many sets of texts."""
    rng, n, hits = np.random.default_rng(0), 60, 0
    for i in range(200):
        lengths = rng.integers(1, 50, n)
        texts = ["x" * k for k in lengths]
        width = half_sampling_interval(texts, lambda t: float(np.mean([len(x) for x in t])), 100, seed=i)
        hits += abs(lengths.mean() - 25) < width
    assert 0.90 <= hits / 200 <= 0.99


def test_numbers_of_a_row():
    runs = {s: {"ppl_eps": 10.0 + s, "self_bleu": 5.0 * s, "steps": 7} for s in (1, 2, 4)}
    base = {s: {"ppl_eps": 20.0 + s * s, "self_bleu": 5.0 * s, "steps": 7} for s in (1, 4, 9)}
    human = {"self_bleu": 15.0}
    ppl, bleu, steps = (numbers_of(column, runs, base, human) for column in (PPL, BLEU, STEPS))
    assert ppl["ppl_eps"] == pytest.approx(10 + 7 / 3) and ppl["ppl_eps_seeds"] == [11, 12, 14]
    assert ppl["ppl_eps_ci"] == pytest.approx(4.302653 * np.std([1, 2, 4], ddof=1) / math.sqrt(3))
    # paired by the seeds of both: 11 and 21, 14 and 36
    assert ppl["ppl_eps_diff"] == -16 and ppl["ppl_eps_diff_ci"] == pytest.approx(12.706205 * 6)
    assert not ppl["ppl_eps_better"] and bleu["self_bleu_diff"] == 0 and not bleu["self_bleu_better"]
    assert steps == {"steps": 7, "steps_seeds": [7, 7, 7]}  # a plain number
    nearer = {s: {"self_bleu": 15.0 + s / 9} for s in base}
    assert numbers_of(BLEU, nearer, base, human)["self_bleu_better"] is False  # one seed is as far as another
    far = {s: {"self_bleu": 60.0 + s} for s in base}
    assert numbers_of(BLEU, nearer, far, human)["self_bleu_better"] is True
    one = numbers_of(PPL, {1: runs[1]}, base, {})  # one run says nothing of others
    assert math.isnan(one["ppl_eps_ci"]) and math.isnan(one["ppl_eps_diff_ci"]) and not one["ppl_eps_better"]


def test_paired_p():
    a, b = {1: 1.0, 2: 2.0, 3: 4.0}, {1: 0.0, 2: 0.0, 3: 0.0, 4: 9.0}
    # mean 7/3, standard deviation 1.528: t = 2.646 of 2 degrees of freedom
    assert paired_p(a, b) == pytest.approx(0.1180829 / 2)
    assert paired_p(b, a) == pytest.approx(1 - 0.1180829 / 2)
    assert paired_p(a, a) == 0.5 and paired_p({1: 1.0, 2: 1.0}, {1: 0.0, 2: 0.0}) == 0
    assert math.isnan(paired_p({1: 1.0, 5: 2.0}, b))


def test_holm():
    """Each step has its own threshold, and nothing is rejected behind the first that is not."""
    assert holm({"a": 0.01, "b": 0.04, "c": 0.02}) == {"a", "b", "c"}
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == {"a"}
    assert holm({"a": 0.02, "b": 0.02, "c": 0.02}) == set() == holm({})


def test_the_best_row_keeps_its_star():
    """A row as good as any stays in the group in at least 95% of tables, one far off in hardly any."""
    rng, kept, far, tables = np.random.default_rng(0), 0, 0, 400
    for _ in range(tables):
        values = rng.standard_normal((8, 5))
        values[7] += 20
        found = best_group({str(i): dict(enumerate(row)) for i, row in enumerate(values.tolist())})
        kept += "0" in found
        far += "7" in found
    assert kept / tables >= 0.95 and far / tables <= 0.01


def test_no_star_within_noise_and_none_for_few_seeds():
    base = {1: 10.0, 2: 11.0, 3: 12.0}
    noisy = {1: 10.5, 2: 10.4, 3: 12.3}
    worse = {1: 15.0, 2: 16.1, 3: 17.0}
    few = {"one": {1: 1.0}, "two": {1: 1.0, 2: 1.1}, "inf": {1: 1.0, 2: 1.0, 3: math.inf}}
    rows = {"base": base, "noisy": noisy, "worse": worse, **few}
    assert best_group(rows) == {"base", "noisy"}
    assert best_group({**rows, "elsewhere": {7: 9.9, 8: 13.0, 9: 13.0}}) == {"base", "noisy"}  # no pairs
    assert best_group(few) == set()


def runs_of(ppl: list[float], bleu: list[float]) -> dict[int, dict]:
    return {s: {"ppl_eps": p, "self_bleu": b} for s, (p, b) in enumerate(zip(ppl, bleu), 1)}


ROWS = {
    "baseline": runs_of([183.1, 180.5, 187.4], [8.4, 10.1, 10.6]),
    "same": runs_of([184.1, 180.2, 187.1], [11.4, 10.3, 11.6]),
    "better": runs_of([160.1, 158.0, 163.4], [11.0, 11.2, 11.9]),
    "sparse": runs_of([2410.8, 2562.2, 2824.1], [14.5, 14.6, 14.4]),  # as diverse as human text
    "one": runs_of([150.0], [14.5]),
}
HUMAN = {"name": "human", "reference": True, "self_bleu": 14.5}


def test_nearness_to_human_is_not_quality():
    """A row of perplexity 2,599 is not marked, however near to human its texts are."""
    assert worse(ROWS) == {"sparse", "one"}
    assert best_rows(BLEU, ROWS, HUMAN, worse(ROWS)) == {"baseline", "same", "better"}
    assert best_rows(PPL, ROWS, HUMAN, worse(ROWS)) == {"better"}
    assert best_rows(STEPS, ROWS, HUMAN, ()) == best_rows(BLEU, ROWS, {}, ()) == set()
    assert "sparse" in best_rows(BLEU, ROWS, HUMAN, ())  # it was its quality alone
    # the first row is the standard
    assert worse({"sparse": ROWS["sparse"], "baseline": ROWS["baseline"]}) == set()


def test_the_papers_rows_are_told_apart_by_their_own_perplexity():
    """One of a perplexity that is not finite does not compete; of rows without one nobody is left out."""
    paper = {n: {s: r | {"ppl_train": r["ppl_eps"]} for s, r in runs.items()} for n, runs in ROWS.items()}
    for runs in paper.values():
        for r in runs.values():
            del r["ppl_eps"]
    assert worse(paper) == worse(ROWS)
    paper["same"][2]["ppl_train"] = math.inf
    assert worse(paper) == worse(ROWS) | {"same"}
    assert worse({name: {1: {"accuracy": 9.0}} for name in "ab"}) == set()


SETTINGS = {"tokenizer": "", "words": 5, "temperature": 1.0, "top_k": 0, "seed": 1}


def row_of(row: str, seed: int, **fields) -> dict:
    common = {"measure": "text", "definition": 1, "settings": SETTINGS, "name": f"{row}-small-{seed}"}
    run = {"row": row, "overlay": "small", "seed": seed, "steps": 100, "training": {"head": row}}
    return common | run | fields


def test_seeds_are_grouped_by_their_fields():
    """Never by what a name looks like."""
    same = [row_of("a", 1), row_of("a", 2), row_of("b", 1) | {"name": "a-small-3"}]
    assert {k: len(v) for k, v in grouped([*same, HUMAN]).items()} == {"a": 2, "b": 1}
    brief = row_of("a", 1, overlay="brief", training={"head": "a", "max_steps": 5}, name="a-brief-1")
    assert list(grouped([*same, brief])) == ["a-small", "b-small", "a-brief"]
    other = row_of("a", 3, training={"head": "a", "gain": 2.0})  # of another training
    assert list(grouped([*same[:2], other])) == ["a-small-1", "a-small-2", "a-small-3"]
    # a later version says more of a run, and what it says of an earlier one is the default
    later = row_of("a", 3, training=same[0]["training"] | {"gain": 1.0, "commit": "0", "new": 5})
    assert len(grouped([*same[:2], later])["a"]) == 3
    twice = row_of("a", 1, name="again")
    assert list(grouped([same[0], twice])) == ["a-small-1", "again"]


@pytest.mark.parametrize("key, digest", [("teacher", "teacher_weights"), ("init_from", "init_weights")])
def test_seeds_of_one_row_differ_in_what_follows_from_the_seed_alone(key, digest):
    def rows(*sources: tuple[str, str | None]) -> list[str]:
        found = [
            row_of("a", seed, training={"head": "a", key: path, digest: weights})
            for seed, (path, weights) in enumerate(sources, 1)
        ]
        return list(grouped(found))

    apart = ["a-small-1", "a-small-2"]
    assert rows(("", None), ("", None)) == ["a"]
    assert rows(("", None), ("out/A", "1" * 64)) == apart  # from scratch, and not
    assert rows(("out/A/last", "1" * 64), ("out/A/last", "1" * 64)) == ["a"]
    assert rows(("out/A/last", "1" * 64), ("there/B", "1" * 64)) == ["a"]
    assert rows(("out/A/last", "1" * 64), ("out/A/last", "2" * 64)) == apart
    assert rows(("out/A", None), ("out/B", None)) == apart
    # each its own
    assert rows(("out/b-tiny-1/last", "1" * 64), ("there/b-tiny-2", "2" * 64)) == ["a"]
    assert rows(("out/b-tiny-1/last", "1" * 64), ("out/c-tiny-2/last", "2" * 64)) == apart
    assert rows(("out/b-tiny-2/last", "1" * 64), ("out/b-tiny-1/last", "2" * 64)) == apart
    assert rows(("out/b-tiny-1", "1" * 64), ("out/b-tiny-1", "1" * 64)) == ["a"]  # that of seed 1 for both


def test_a_view_as_markdown_latex_and_csv(tmp_path):
    """Bold is what is better than the first row by the interval; a star what may be the best."""
    rows = [row_of("a", s, ppl_eps=40.0 + s) for s in (1, 2, 3)]
    rows += [row_of("b_1", s, ppl_eps=30.0 + s, self_bleu=9.0) for s in (1, 2, 3)]
    rows += [HUMAN | {"settings": SETTINGS, "self_bleu": 10.0, "self_bleu_ci": 0.5}]
    view = TextMeasure().view(rows)
    view.write(tmp_path / "x")
    assert (tmp_path / "x.md").read_text() == view.markdown
    tex = r"b\_1 & \bfseries 32.00 ± 2.48 * & 9.00 ± 0.00 (-1.00) * & 100 \\"
    assert tex in (tmp_path / "x.tex").read_text()
    sheet = pd.read_csv(tmp_path / "x.csv", index_col="name")
    assert sheet.loc["b_1", "ppl_eps"] == 32 and sheet.loc["b_1", "ppl_eps_seeds"] == "31.0 32.0 33.0"
    assert view.fitting(20).tables[0].shape == view.tables[0].T.shape


def test_texts_are_cut_to_what_most_human_texts_have():
    assert common_words(["w " * n for n in range(100, 201)]) == 105
    assert common_words(["早上，老人走到港口"] * 10, "zh") == 9
    long = ["a b c d e f", "a b c d g h", "b c a d x y"]
    got = text_metrics([*long, "a b c"], 4)
    assert got.pop("short_texts") == 1
    assert got == text_metrics(["a b c d", "a b c d", "b c a d", "a b c"])


RUN = {"block_size": 10, "batch_size": 2, "vocab_size": 30, "train_tokens": 101}
LABELS = {"candidates": 5, "positions": 0.5, "ppl_threshold": 0.0}


def spent_by(config: dict) -> dict:
    return training_cost(SimpleNamespace(config=RunConfig(**config), progress=Progress(7, 140)))


def test_what_a_run_has_spent():
    own = {"steps": 7, "train_tokens": 140, "teacher_tokens": 0}
    assert spent_by(RUN | {"teacher": "gpt2", "labels": "true"}) == own
    assert spent_by(RUN | {"init_from": "gpt2", "init_weights": None}) == own  # none of ours
    before = {"steps": 100, "train_tokens": 2000, "teacher_tokens": 30}
    started = RUN | {"init_from": "gone", "init_weights": "0", "init_spent": before}
    assert spent_by(started) == {"steps": 107, "train_tokens": 2140, "teacher_tokens": 30}
    taught = RUN | LABELS | {"labels": "soft", "teacher": "gone"}
    taught |= {"teacher_weights": "0", "teacher_spent": before}
    assert spent_by(taught) == {"steps": 7, "train_tokens": 140, "teacher_tokens": 100 + 2030}
    assert spent_by(taught | {"teacher_weights": None, "teacher_spent": None})["teacher_tokens"] == 100


def test_a_training_records_what_it_builds_on(trained, token_folder, tmp_path):
    """A run started from another one and taught by it, and one that starts from that; resumed, too."""
    source = shutil.copytree(trained, tmp_path / "source")
    begun = dict(head="sigmoid", labels="soft", teacher=str(trained), candidates=3)
    begun |= dict(lr_decay_steps=4, init_from=str(source))
    train_on(token_folder, tmp_path / "first", max_steps=2, **begun)
    shutil.rmtree(source)  # which a resumed run needs no more
    train_on(token_folder, tmp_path / "first", max_steps=4, resume=True, **begun)
    size, before = TINY["block_size"], Run(trained).progress
    read = (len(open_tokens(token_folder / "train.bin").ids) - 1) // size * size  # for the label store
    tokens = before.step * size * TINY["batch_size"]
    own = {"steps": before.step + 4, "train_tokens": tokens + 4 * size * TINY["batch_size"]}
    assert training_cost(Run(tmp_path / "first", "last")) == own | {"teacher_tokens": tokens + read}


# ---- ratios ----------------------------------------------------------------------------------------------


PLACES = [{"learning_rate": rate} for rate in (0.001, 0.002, 0.004, 0.008)]


def trials(row, nll, own_space=None):
    common = {"row": row, "seed": 1, "vocab_size": 4096}
    common["settings"] = {"design": 3, "own_space": own_space or {}}
    found = enumerate(zip(PLACES, nll))
    return [common | {"trial": i, "point": point, "nll": value} for i, (point, value) in found]


def rows(row, ppl):
    common = {"row": row, "overlay": "", "training": {}}
    return [common | {"name": f"{row}-{s}", "seed": s, "ppl_eps": value} for s, value in enumerate(ppl, 2)]


SEARCH = [
    *trials("baseline", [5.0, 5.01, 5.1, 4.99]),  # the third is too far from the best, the fourth not shared
    *trials("worse", [5.02, 5.04, 4.0, 4.0]),
    *trials("constant", [5.02, 5.04, 4.0, 4.0], {"head_args.eps": [0.1, 0.2]}),
    *trials("elsewhere", [5.02]),
]
TABLE = [*rows("baseline", [100.0, 102.0, 101.0]), *rows("worse", [103.0, 105.06, 104.03])]


def test_both_comparisons():
    found = ratios.compare(TABLE, SEARCH)
    assert found.first == "baseline" and found.places == 2 and found.names == ["worse"]
    assert found.best["worse"].mean == pytest.approx(math.log(1.03))
    at = found.same["worse"]  # .02 and .03: Student's t of one degree of freedom
    assert at.mean == pytest.approx(0.025) and at.half == pytest.approx(12.7062 * 0.005, rel=1e-4)
    alone = ratios.compare(TABLE, [])  # a search widens the first comparison
    assert found.best["worse"].half > 10 * alone.best["worse"].half and not alone.same
    # a row without fresh seeds stands where its places put it
    found = ratios.compare(TABLE, [*SEARCH, *trials("ahead", [4.99, 5.0, 5.0])])
    assert found.names == ["ahead", "worse"] and "ahead" not in found.best


def test_no_perplexity_no_ratio():
    found = ratios.compare([{"row": "a", "overlay": "", "name": "a", "seed": 1, "training": {}}], SEARCH)
    assert not ratios.view(found, {}).parts


def test_cost_counts_the_teacher(tmp_path):
    file = tmp_path / "steps.json"
    steps = [{"program": "baseline", "cpu_seconds": 2.0}, {"program": "taught", "cpu_seconds": 3.0}]
    file.write_text(json.dumps({"results": steps}))
    pace = ratios.pace_of(file, "baseline")
    base = {"row": "baseline", "train_tokens": 300, "teacher_tokens": 0, "training": {"teacher_spent": None}}
    taught = {"row": "taught", "train_tokens": 300, "teacher_tokens": 390}
    taught |= {"training": {"teacher_spent": {"train_tokens": 300}}}  # 90 tokens were read for labels
    longer = base | {"row": "longer", "train_tokens": 600}
    found = ratios.costs([base, taught, longer], "baseline", pace | {"longer": 1.0})
    assert found == pytest.approx({"baseline": 1.0, "taught": 1.5 + 1 + 0.1, "longer": 2.0})
    assert ratios.pace_of(file, "another") == {}


def test_a_ratio_too_large_for_a_number_is_inf():
    assert ratios.numbers(Estimate(0.1, 800.0, 0.5)) == ["1.105", "0.000 to inf"]
