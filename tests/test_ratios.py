"""Each row's perplexity over the first row's, at its best and at the same places, and what it costs."""

import json
import math

import pytest

from tables import ratios
from tables.statistics import Estimate

PLACES = [{"learning_rate": rate} for rate in (0.001, 0.002, 0.004, 0.008)]


def trials(row, nll, own_space=None):
    settings = {"design": 3, "own_space": own_space or {}}
    return [
        {"row": row, "trial": i, "seed": 1, "point": point, "nll": value, "vocab_size": 4096}
        | {"settings": settings}
        for i, (point, value) in enumerate(zip(PLACES, nll))
    ]


def rows(row, ppl):
    return [
        {"row": row, "overlay": "", "name": f"{row}-{seed}", "seed": seed, "ppl_eps": value, "training": {}}
        for seed, value in enumerate(ppl, 2)
    ]


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


def test_a_row_without_fresh_seeds_stands_where_its_places_put_it():
    found = ratios.compare(TABLE, [*SEARCH, *trials("ahead", [4.99, 5.0, 5.0])])
    assert found.names == ["ahead", "worse"] and "ahead" not in found.best


def test_a_search_widens_the_first_comparison_alone():
    alone, searched = ratios.compare(TABLE, []), ratios.compare(TABLE, SEARCH)
    assert searched.best["worse"].half > 10 * alone.best["worse"].half and not alone.same


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
    assert ratios.costs([base, taught, longer], "baseline", pace | {"longer": 1.0}) == pytest.approx(
        {"baseline": 1.0, "taught": 1.5 + 1 + 0.1, "longer": 2.0}
    )
    assert ratios.pace_of(file, "another") == {}


def test_a_ratio_too_large_for_a_number_is_inf():
    assert ratios.numbers(Estimate(0.1, 800.0, 0.5)) == ["1.105", "0.000 to inf"]
