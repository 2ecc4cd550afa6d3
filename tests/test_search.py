"""The search: its points, what it takes over and keeps, and what it finds."""

import itertools
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from common.config import read
from common.errors import UserError
from config.defaults import TrainConfig
from tables import search, workers
from tables.measure import training_of
from tables.search import Search, best_of, expected_best, points, propose, trials_in, trials_of
from tables.settings import TableConfig
from tables.store import Store
from tests.fixtures import over, train_in_process
from tests.test_table import names_in, whole  # noqa: F401

SPACE = {"learning_rate": [1e-3, 8e-3], "gain": [0.5, 16]}
NO_STORE = Store(None)


# ---- points ------------------------------------------------------------------------------------------------


def test_the_points_are_known_in_advance():
    """Of any version of Optuna: trials of one machine are those of another."""
    assert points(SPACE, 3) == [
        {"learning_rate": 0.00586, "gain": 12.6},
        {"learning_rate": 0.00256, "gain": 0.892},
        {"learning_rate": 0.00168, "gain": 3.89},
    ]
    assert [points(SPACE, n) for n in (1, 2, 5, 8)] == [points(SPACE, 16)[:n] for n in (1, 2, 5, 8)]


def test_every_row_has_the_same_points_and_its_own_flags_win():
    rows = ["baseline", "temperature", "smooth_gpt --gain 2", "am_softmax --min_lr=1e-5"]
    c = TableConfig(rows=rows, design=4, flags="--eval_windows=3")  # trials are compared by all of the split
    trials = Search(c, NO_STORE)
    plain, other, fixed, low = ([t.wanted for t in trials.missing(row)] for row in c.rows)
    for key in SPACE:
        assert [w[key] for w in plain] == [w[key] for w in other] == [p[key] for p in points(SPACE, 4)]
    assert {w["gain"] for w in fixed} == {2.0} and len({w["learning_rate"] for w in fixed}) == 4
    assert all(w["min_lr"] == pytest.approx(w["learning_rate"] / 10, rel=1e-2) for w in plain + fixed)
    assert {w["min_lr"] for w in low} == {1e-5}
    assert all(w["eval_interval"] > w["max_steps"] and w["seed"] == 1 for w in plain)
    assert not any(w["eval_windows"] for w in plain)
    c.flags = "--gain=3"  # the table's flags are no more searched than a row's
    assert {t.wanted["gain"] for t in Search(c, NO_STORE).missing(rows[0])} == {3.0}
    (only,) = trials.missing("baseline --gain=2 --learning_rate=1e-3")  # nothing to search
    assert only.fields["point"] == {} and only.out == Path("out/baseline-brief-1-t00")


def test_a_row_can_have_a_constant_of_its_own():
    """It is searched beside what all rows have, whose points stay the same."""
    c = TableConfig(rows=["baseline", "am_softmax", "smooth_gpt --head_args.eps=0.1"])
    c.own_space = {"am_softmax": {"head_args.m": [0.1, 10]}, "smooth_gpt": {"head_args.eps": [0.01, 0.1]}}
    trials = Search(c, NO_STORE)
    plain, own, fixed = ([t.wanted for t in trials.missing(row)] for row in c.rows)
    for key in SPACE:
        assert [w[key] for w in plain] == [w[key] for w in own] == [w[key] for w in fixed]
    assert {w["head_args"]["eps"] for w in fixed} == {0.1}
    margin = np.log10([w["head_args"]["m"] for w in own])
    assert np.histogram(margin, bins=8, range=(-1, 1))[0].tolist() == [1] * 8
    for key in SPACE:  # in each half of the shared setting, it takes both halves of its own
        low = [w[key] < np.median([w[key] for w in own]) for w in own]
        assert 1 <= sum(np.array(low) & (margin < 0)) <= 3


def test_a_row_that_is_added_to_an_older_search_has_its_points(tmp_path, monkeypatch):
    """Whatever Optuna draws by now."""
    monkeypatch.setattr(Search, "check", lambda *_: None)
    c, store = TableConfig(rows=["baseline", "smooth_gpt"], design=2, trials=3), Store(tmp_path / "x.jsonl")
    old = {"learning_rate": 0.00235, "gain": 14.1}
    store.put([entry("baseline", 0, 5.0, point=old), entry("baseline", 2, 5.0, point=old)])
    first, second = points(SPACE, 2)
    at = [[job.fields["point"] for job in Search(c, store).missing(row)] for row in c.rows]
    assert at == [[second], [old, second]] and first != old


def test_two_searches_never_mix_in_one_file(tmp_path, monkeypatch):
    """Not where the other one has begun in an empty file meanwhile."""
    store = Store(tmp_path / "x.jsonl")
    one, other = (Search(TableConfig(rows=["baseline"], design=n, trials=2), store) for n in (1, 2))
    found = {"training": training_of({"vocab_size": 100}), "nll": 5.0}
    monkeypatch.setattr(Search, "check", lambda *_: None)
    one.record(one.missing("baseline")[0], found)
    with pytest.raises(UserError, match="design"):
        other.record(other.missing("baseline")[0], found)
    assert len(trials_in(store)) == 1


def test_the_further_trials_follow_from_those_before():
    """They close in on the best point of a bowl, and are the same for the same trials."""

    def bowl(point: dict) -> float:
        distance = (math.log(point["learning_rate"] / 6e-3), math.log(point["gain"] / 1))
        return 5 + sum(d**2 for d in distance)

    found = [entry("x", i, bowl(p), point=p) for i, p in enumerate(points(SPACE, 8))]
    assert propose(SPACE, found) == propose(SPACE, found)
    for i in range(8, 12):
        at = propose(SPACE, found)
        assert all(low <= at[key] <= high for key, (low, high) in SPACE.items())
        found.append(entry("x", i, bowl(at), point=at))
    assert best_of(found)["nll"] < 5.05 and min(t["nll"] for t in found[:8]) > 5.2
    found[-1]["nll"] = math.inf  # a trial that diverged
    assert propose(SPACE, found)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_point_at_the_edge_stays_in_the_space(sign):
    """Of which three digits may be outside."""
    space = {"gain": [0.03125, 7.9996]}
    found = [entry("x", i, sign * math.log(p["gain"]), point=p) for i, p in enumerate(points(space, 4))]
    for i in range(4, 8):
        at = propose(space, found)
        assert space["gain"][0] <= at["gain"] <= space["gain"][1]
        assert search.flags_of(at, set()) == [f"--gain={at['gain']}"]
        found.append(entry("x", i, sign * math.log(at["gain"]), point=at))
    assert best_of(found)["point"]["gain"] == space["gain"][0 if sign == 1 else 1]
    tried = [t["point"]["gain"] for t in found]
    assert len(set(tried)) == len(tried)  # the corner once


# ---- what was found ----------------------------------------------------------------------------------------


def test_expected_best_is_the_mean_over_all_draws():
    values = [3.0, 1.0, 4.0, 1.5]
    for draws in (1, 2, 3):
        every = [min(draw) for draw in itertools.product(values, repeat=draws)]
        assert expected_best(values, draws) == pytest.approx(np.mean(every))
    assert expected_best(values, 1000) == pytest.approx(1.0)


def test_the_error_of_a_search_is_the_bootstrap_s():
    values = [5.0, 5.1, 5.3, 6.0]
    lowest = [min(drawn) for drawn in itertools.product(values, repeat=4)]
    assert search.search_error(values) == pytest.approx(1.5 * np.std(lowest), rel=1e-9)
    errors = search.search_errors([entry("x", i, nll) for i, nll in enumerate(values)])
    assert errors == {"x": (search.search_error(values), 3)}
    assert search.search_error([5.0]) == 0


def entry(row: str, trial: int, nll: float, **changes) -> dict:
    """A row of the store."""
    settings = {"space": SPACE, "design": 2}
    one = {"measure": "search", "definition": 1, "settings": settings, "name": f"{row}-brief-1-t{trial:02d}"}
    one |= {"row": row, "overlay": "brief", "seed": 1, "trial": trial, "point": {}}
    one |= {"nll": nll, "diverged": not math.isfinite(nll), "vocab_size": 100, "training": {}}
    return one | changes


# ---- a whole search ----------------------------------------------------------------------------------------


@pytest.fixture
def start(whole):  # noqa: F811
    """start(*flags, **changes) -> exit code of table.py; `start.trained`: see `whole`."""
    make, trained = whole

    def start(*flags, **changes):
        return make(*flags, **dict(trials=2, design=2) | changes)

    start.trained = trained
    return start


def trials() -> dict:
    return {t["name"]: t for t in trials_in(Store(Path("results/mini.jsonl")))}


def config_of(name: str) -> dict:
    return json.loads(Path(f"out/{name}/last/config.json").read_text())


def test_a_search_from_nothing_to_a_tuned_table(start, token_folder, capsys, monkeypatch):
    inner, codes = workers.start, [143]

    def run(command, environment):
        at_first = codes and "--name=baseline-mini-1-t01" in command
        return over(codes.pop()) if at_first else inner(command, environment)

    # Stopped, it goes on, and takes over what was trained by hand
    monkeypatch.setattr(workers, "start", run)
    with pytest.raises(ValueError, match="baseline"):
        start("--tuned", seeds=[2, 3])
    assert start("--search") == 143 and start.trained == ["baseline-mini-1-t00"] == list(trials())
    hand = ["config/baseline.py", "config/mini.py", *search.flags_of(points(SPACE, 2)[1], set())]
    for seed, name in ((1, "baseline-mini-1-t01"), (2, "baseline-mini-1-t02")):
        own = ["--eval_interval=6", f"--seed={seed}", f"--name={name}", f"--out_dir=out/{name}"]
        assert train_in_process(read(TrainConfig, [*hand, *own]), token_folder) == 0
    assert start("--search") == 0
    assert start.trained[1:] == ["smooth_gpt-mini-1-t00", "smooth_gpt-mini-1-t01"]
    with pytest.raises(ValueError, match="baseline-mini-1-t02"):  # of another seed
        start("--search", rows=["baseline"], trials=3)

    # A trial is what its run says
    there = trials()
    assert [*there] == [f"{row}-mini-1-t0{i}" for row in ("baseline", "smooth_gpt") for i in (0, 1)]
    for name, t in there.items():
        config, progress = config_of(name), json.loads(Path(f"out/{name}/last/progress.json").read_text())
        assert t["nll"] == progress["best_val_nll"] and t["training"] == training_of(config)
        assert t["point"] == {"learning_rate": config["learning_rate"], "gain": config["gain"]}
        assert (t["row"], t["overlay"], t["seed"]) == (name.split("-")[0], "mini", 1) and not t["diverged"]
        assert "/" not in "".join(map(str, t["training"].values()))
    assert Path("results/mini.tune.md").is_file()

    # More trials follow from those that are there, also without their folders
    shutil.rmtree("out")
    assert start("--search", trials=3) == 0 and len(start.trained) == 5 and trials().items() >= there.items()
    own = trials_of(there.values(), "smooth_gpt")
    assert trials()["smooth_gpt-mini-1-t02"]["point"] == propose(SPACE, own)

    # Another search, or another training, is refused
    overlay = Path("config/mini.py").read_text()
    for key, change in (
        ("flags", dict(flags="--max_steps=5")),
        ("weight_decay", dict(rows=["baseline --weight_decay=0.3"])),
        ("smoth_gpt", dict(own_space={"smoth_gpt": {"head_args.eps": [0.1, 0.2]}})),
        ("nonsense", dict(measure="nonsense")),
        ("wrods", dict(evaluate="--wrods=8")),
        ("eval_steps", {}),  # the lowest of these counts
    ):
        Path("config/mini.py").write_text(overlay + "eval_steps = [2, 4]\n" * (key == "eval_steps"))
        with pytest.raises(ValueError, match=key):
            start("--search", trials=3, **change)
    for flag in ("--tuned", "--tuned=True"):
        with pytest.raises(ValueError, match="tuned"):
            start("--search", flag, trials=3)
    Path("config/mini.py").write_text(overlay)
    with monkeypatch.context() as m, pytest.raises(ValueError, match="data_sha256"):
        m.setattr("tables.jobs.data_of", lambda wanted: "another")
        start("--search", trials=3)

    # A table at the best points
    tuned = dict(seeds=[2, 3], trials=3)
    for key, change in (
        ("baseline", dict(trials=4)),
        ("seeds", dict(seeds=[1, 2])),
        ("flags", dict(flags="--max_steps=9")),
        ("weight_decay", dict(rows=["baseline --weight_decay=0.3"])),
    ):
        with pytest.raises(ValueError, match=key):
            start("--tuned", **tuned | change)
    assert start("--tuned", **tuned) == 0 and len(start.trained) == 9
    best = {row: best_of(trials_of(trials().values(), row))["point"] for row in ("baseline", "smooth_gpt")}
    for row in Store(Path("results/mini.jsonl")).rows("text"):
        assert row.get("reference") or best[row["row"]].items() <= row["training"].items()
    assert "| smooth_gpt |" in Path("results/mini.ratios.md").read_text()

    # Another table may take its points from there; and elsewhere a row is repeated at the committed point
    capsys.readouterr()
    ask = dict(seeds=[4], trials=3, rows=["baseline"])
    assert start("--tuned", "--commands", name="other", tuning="results/mini.jsonl", **ask) == 0
    said = capsys.readouterr().out
    assert f" --gain={best['baseline']['gain']:g} " in said and " --seed=4 " in said
    monkeypatch.setattr(search, "CODE", Path())
    again = dict(results="again", runs="again", **ask)
    assert start("--tuned", "--commands", **again) == 0
    assert capsys.readouterr().out == said.replace("out/", "again/")
    with pytest.raises(ValueError, match="max_steps"):
        start("--tuned", **again, flags="--max_steps=5")


def test_a_row_starts_from_the_best_trial_of_the_first(start, capsys):
    rows = ["baseline", "stop_gradient --init_from={first} --gain={gain}"]
    assert start("--search", "--commands", rows=rows) == 0
    names = names_in(capsys.readouterr().out)
    assert names == ["baseline-mini-1-t00", "baseline-mini-1-t01"] and not start.trained
    assert start("--search", rows=rows) == 0
    best = best_of(trials_of(trials().values(), "baseline"))
    for name in ("stop_gradient-mini-1-t00", "stop_gradient-mini-1-t01"):
        config = config_of(name)
        assert config["init_from"] == f"out/{best['name']}/last" and config["gain"] == best["point"]["gain"]
        assert trials()[name]["point"].keys() == {"learning_rate"}
    before = trials()
    Path("results/mini.jsonl").unlink()  # as where they were trained on another machine
    assert start("--search", rows=rows) == 0 and trials().keys() == before.keys() and len(start.trained) == 4
    shutil.rmtree("out")
    assert start("--search", rows=rows) == 0 and len(start.trained) == 4
    assert start("--search", rows=[*rows, "sparse_softmax_k --init_from={first}"]) == 0
    assert start.trained[4:] == [best["name"], "sparse_softmax_k-mini-1-t00", "sparse_softmax_k-mini-1-t01"]


def test_a_trial_that_diverges_is_a_result_and_a_mistake_is_none(start, monkeypatch):
    asked = dict(space={"learning_rate": [1e-3, 1e30]}, flags="--grad_clip=0")
    assert start("--search", rows=["baseline"], **asked) == 0 and len(start.trained) == 2
    (t,) = [t for t in trials().values() if t["diverged"]]
    assert t["nll"] == math.inf and t["vocab_size"] == 300 and t["point"]["learning_rate"] > 1e10
    Path("results/mini.jsonl").unlink()
    assert start("--search", rows=["baseline"], **asked) == 0 and len(start.trained) == 2
    monkeypatch.setattr(workers, "start", lambda *_: over(2))
    with pytest.raises(ChildProcessError, match="smooth_gpt-mini-1-t00"):
        start("--search", **asked)
