"""The search: its points, what it takes over and keeps, and what it finds."""

import itertools
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

import table
import train
from common.config import read
from config.defaults import TrainConfig
from evaluate import search, workers
from evaluate.measure import training_of
from evaluate.search import (
    Search,
    best_of,
    expected_best,
    points,
    propose,
    search_error,
    trials_in,
    trials_of,
)
from evaluate.store import Store
from table import TableConfig
from tests.fixtures import TINY, over, train_in_process

ROOT = Path(__file__).resolve().parents[1]
SPACE = {"learning_rate": [1e-3, 8e-3], "gain": [0.5, 16]}
NO_STORE = Store(None)


# ---- points ------------------------------------------------------------------------------------------------


def test_the_points_are_known_in_advance():
    """Of any version of scipy: trials of one machine are those of another."""
    assert points(SPACE, 3) == [
        {"learning_rate": 0.00235, "gain": 14.1},
        {"learning_rate": 0.00449, "gain": 0.726},
        {"learning_rate": 0.00656, "gain": 3.12},
    ]
    assert [points(SPACE, n) for n in (1, 2, 5, 8)] == [points(SPACE, 16)[:n] for n in (1, 2, 5, 8)]


def test_every_row_has_the_same_points_and_its_own_flags_win():
    c = TableConfig(rows=["baseline", "temperature", "smooth_gpt --gain 2", "am_softmax --min_lr=1e-5"])
    c.flags = "--eval_windows=3"  # of the split that the trials are compared by: all of it
    trials = Search(c, NO_STORE)
    plain, other, fixed, low = ([t.wanted for t in trials.shared(row)] for row in c.rows)
    assert [(w["learning_rate"], w["gain"]) for w in plain] == [
        (p["learning_rate"], p["gain"]) for p in points(SPACE, 8)
    ]
    for key in ("learning_rate", "gain", "min_lr"):
        assert [w[key] for w in plain] == [w[key] for w in other]
    assert {w["gain"] for w in fixed} == {2.0} and len({w["learning_rate"] for w in fixed}) == 8
    assert all(w["min_lr"] == pytest.approx(w["learning_rate"] / 10, rel=1e-2) for w in plain + fixed)
    assert {w["min_lr"] for w in low} == {1e-5}
    assert all(w["eval_interval"] == w["max_steps"] == 1000 and w["seed"] == 1 for w in plain)
    c.flags = "--gain=3"  # the table's flags are no more searched than a row's
    wanted = [t.wanted for row in c.rows[:2] for t in Search(c, NO_STORE).shared(row)]
    assert {w["gain"] for w in wanted} == {3.0} and len({w["learning_rate"] for w in wanted}) == 8
    assert not any(w["eval_windows"] for w in plain)
    (only,) = trials.shared("baseline --gain=2 --learning_rate=1e-3")  # nothing to search
    assert only.point == {} and only.out == Path("out/baseline-brief-1-t00")


def test_a_row_can_have_a_constant_of_its_own():
    """It is searched beside what all rows have, whose points stay the same."""
    c = TableConfig(rows=["baseline", "am_softmax", "smooth_gpt --head_args.eps=0.1"])
    c.own_space = {"am_softmax": {"head_args.m": [0.1, 10]}, "smooth_gpt": {"head_args.eps": [0.01, 0.1]}}
    trials = Search(c, NO_STORE)
    plain, own, fixed = ([t.wanted for t in trials.shared(row)] for row in c.rows)
    for key in SPACE:
        assert [w[key] for w in plain] == [w[key] for w in own] == [w[key] for w in fixed]
    assert {w["head_args"]["eps"] for w in fixed} == {0.1}
    margin = np.log10([w["head_args"]["m"] for w in own])
    assert np.histogram(margin, bins=8, range=(-1, 1))[0].tolist() == [1] * 8
    for key in SPACE:  # in each half of the shared setting, it takes both halves of its own
        low = [w[key] < np.median([w[key] for w in own]) for w in own]
        assert 1 <= sum(np.array(low) & (margin < 0)) <= 3


def test_the_further_trials_follow_from_those_before():
    """They close in on the best point of a bowl, and are the same for the same trials."""

    def bowl(point: dict) -> float:
        distance = (math.log(point["learning_rate"] / 2e-3), math.log(point["gain"] / 4))
        return 5 + sum(d**2 for d in distance)

    found = [entry("x", i, bowl(p), point=p) for i, p in enumerate(points(SPACE, 8))]
    assert propose(SPACE, found) == propose(SPACE, found)
    for i in range(8, 12):
        at = propose(SPACE, found)
        assert all(low <= at[key] <= high for key, (low, high) in SPACE.items())
        found.append(entry("x", i, bowl(at), point=at))
    assert min(t["nll"] for t in found[:8]) > 5.3 and best_of(found)["nll"] < 5.05
    found[-1]["nll"] = math.inf  # a trial that diverged
    assert propose(SPACE, found)


def test_a_point_at_the_edge_stays_in_the_space():
    """Of which three digits may be outside."""
    space = {"gain": [0.03125, 7.9996]}
    for sign in (1, -1):
        found = [entry("x", i, sign * math.log(p["gain"]), point=p) for i, p in enumerate(points(space, 4))]
        for i in range(4, 8):
            at = propose(space, found)
            assert space["gain"][0] <= at["gain"] <= space["gain"][1]
            assert search.flags_of(at, set()) == [f"--gain={at['gain']}"]
            found.append(entry("x", i, sign * math.log(at["gain"]), point=at))
        assert best_of(found)["point"]["gain"] == space["gain"][0 if sign == 1 else 1]
        tried = [t["point"]["gain"] for t in found]
        assert len(set(tried)) == len(tried)  # the corner once


@pytest.mark.parametrize(
    "change, key",
    [
        (dict(trials=0), "trials"),
        (dict(rows=["baseline --teacher={first}"]), "first"),
        (dict(rows=["baseline --teacher={frist}"]), "frist"),
        (dict(flags="--teacher={first}"), "flags"),
        (dict(space={"n_layer": [1, 2]}), "n_layer"),
        (dict(space={"gain": [2, 1]}), "gain"),
        (dict(own_space={"am_softmax": 3}), "own_space"),
        (dict(own_space={"am_softmax": {"head_args": [1, 2]}}), "head_args"),
    ],
)
def test_mistakes_are_found_before_any_training(tmp_path, change, key):
    flags = dict(name="x", rows=["baseline"], results=tmp_path, runs=tmp_path) | change
    with pytest.raises(ValueError, match=key):
        table.main(["--search", "--commands", *(f"--{k}={v}" for k, v in flags.items())])


def test_the_committed_search_is_sound(tmp_path):
    c = read(TableConfig, ["config/tables/heads.py"])
    assert Search(c, Store(tmp_path / "x.jsonl")).shared(c.rows[0])


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
    assert search.bootstrap_error(values) == pytest.approx(np.std(lowest), rel=1e-9)
    assert search_error(values) == 1.5 * search.bootstrap_error(values)
    assert search_error([5.0, 5.0, 9.0]) < search_error([5.0, 8.0, 9.0]) and search_error([5.0]) == 0


def entry(row: str, trial: int, nll: float, **changes) -> dict:
    """A row of the store."""
    settings = {"space": SPACE, "design": 4}
    one = {"measure": "search", "definition": 1, "settings": settings, "name": f"{row}-small-1-t{trial:02d}"}
    one |= {"row": row, "overlay": "small", "seed": 1, "trial": trial, "point": points(SPACE, 16)[trial]}
    one |= {"nll": nll, "diverged": not math.isfinite(nll), "vocab_size": 100, "training": {}}
    return one | changes


# ---- a whole search ----------------------------------------------------------------------------------------


@pytest.fixture
def start(token_folder, tmp_path, monkeypatch):
    """start(*flags, **changes) -> exit code of table.py on the tiny corpus, in a folder of its own.

    train.py runs in this process; `trained` has the names of its runs.
    """
    trained = []

    def fake_train(command, environment):
        config = read(TrainConfig, command[2:])
        trained.append(config.name)
        return over(train_in_process(config, token_folder))

    monkeypatch.setattr(workers, "start", fake_train)
    monkeypatch.setattr("evaluate.jobs.prepared", lambda *_: token_folder)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "config", "config")
    Path("config/mini.py").write_text(
        "".join(f"{k} = {v!r}\n" for k, v in (TINY | dict(block_size=96)).items())
    )

    def start(*flags, **changes):
        asked = dict(name="mini", overlay="mini", rows=["baseline", "smooth_gpt"], trials=2, design=2)
        texts = f"--texts=6 --prompt_tokens=6 --new_tokens=30 --halves=2 --data={token_folder}"
        asked |= dict(evaluate=texts) | changes
        return table.main([*flags, *(f"--{k}={v}" for k, v in asked.items())])

    start.trained = trained
    return start


def trials() -> dict:
    return {t["name"]: t for t in trials_in(Store(Path("results/mini.jsonl")))}


def test_a_whole_search_and_on(start, monkeypatch, tmp_path):
    assert start("--search") == 0
    names = [f"{row}-mini-1-t0{i}" for row in ("baseline", "smooth_gpt") for i in (0, 1)]
    assert start.trained == names
    there = trials()
    for name, t in there.items():
        progress = json.loads(Path(f"out/{name}/last/progress.json").read_text())
        config = json.loads(Path(f"out/{name}/last/config.json").read_text())
        assert t["nll"] == progress["best_val_nll"] and t["training"] == training_of(config)
        assert t["point"] == {"learning_rate": config["learning_rate"], "gain": config["gain"]}
        assert (t["row"], t["overlay"], t["seed"]) == (name.split("-")[0], "mini", 1) and not t["diverged"]
    assert "/" not in "".join(str(v) for t in there.values() for v in t["training"].values())
    assert all(Path(f"results/mini.tune.{end}").is_file() for end in ("md", "png"))
    shutil.rmtree("out")
    assert start("--search") == 0 and len(start.trained) == 4  # all is in the file
    assert start("--search", trials=4) == 0 and len(start.trained) == 8 and trials().items() >= there.items()
    own = trials_of(trials().values(), "smooth_gpt", 3)
    assert trials()["smooth_gpt-mini-1-t03"]["point"] == propose(SPACE, own)
    with pytest.raises(ValueError, match="flags"):
        start("--search", flags="--max_steps=5")
    monkeypatch.setattr(search, "data_of", lambda wanted: "another")
    with pytest.raises(ValueError, match="text"):
        start("--search", trials=4)


def test_a_stopped_search_goes_on(start, monkeypatch):
    inner, codes = workers.start, [143]

    def run(command, environment):
        at_first = codes and "--name=baseline-mini-1-t01" in command
        return over(codes.pop()) if at_first else inner(command, environment)

    monkeypatch.setattr(workers, "start", run)
    assert start("--search") == 143 and start.trained == ["baseline-mini-1-t00"] == list(trials())
    assert start("--search") == 0 and len(start.trained) == len(trials()) == 4


def test_runs_that_were_trained_by_hand_are_taken_over(start, token_folder):
    hand = ["config/baseline.py", "config/mini.py", "--learning_rate=0.00235", "--min_lr=0.000235"]
    hand += ["--gain=14.1", "--seed=1", "--eval_interval=6"]
    hand += ["--name=baseline-mini-1-t00", "--out_dir=out/baseline-mini-1-t00"]
    assert train_in_process(read(TrainConfig, hand), token_folder) == 0
    assert start("--search", rows=["baseline"]) == 0 and start.trained == ["baseline-mini-1-t01"]
    assert len(trials()) == 2
    other = [*hand[:5], "--seed=2", "--name=baseline-mini-1-t02", "--out_dir=out/baseline-mini-1-t02"]
    assert train_in_process(read(TrainConfig, other), token_folder) == 0
    with pytest.raises(ValueError, match="baseline-mini-1-t02"):
        start("--search", rows=["baseline"], trials=3)


def test_a_row_starts_from_the_best_trial_of_the_first(start, capsys):
    rows = ["baseline", "stop_gradient --init_from={first} --gain={gain}"]
    assert start("--search", "--commands", rows=rows) == 0
    names = [line.split("--name=")[1].split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names == ["baseline-mini-1-t00", "baseline-mini-1-t01"] and not start.trained
    assert start("--search", rows=rows) == 0
    best = best_of(trials_of(trials().values(), "baseline", 2))
    for name in ("stop_gradient-mini-1-t00", "stop_gradient-mini-1-t01"):
        config = json.loads(Path(f"out/{name}/last/config.json").read_text())
        assert config["init_from"] == f"out/{best['name']}/last" and config["gain"] == best["point"]["gain"]
        assert trials()[name]["point"].keys() == {"learning_rate"}
    before = trials()
    Path("results/mini.jsonl").unlink()  # as where they were trained on another machine
    assert start("--search", "--partial", rows=rows) == 0 and trials().keys() == before.keys()
    shutil.rmtree("out")
    assert start("--search", rows=rows) == 0 and len(start.trained) == 4
    assert start("--search", rows=[*rows, "sparse_softmax_k --init_from={first}"]) == 0
    assert start.trained[4:] == [best["name"], "sparse_softmax_k-mini-1-t00", "sparse_softmax_k-mini-1-t01"]


def test_a_trial_that_diverges_is_a_result_and_a_mistake_is_none(start, monkeypatch):
    real = train.Trainer.train_step

    def step(self):
        if self.config.gain > 10:
            raise train.Diverged("step 1: the loss is not finite")
        return real(self)

    monkeypatch.setattr(train.Trainer, "train_step", step)
    assert start("--search", rows=["baseline"]) == 0 and len(start.trained) == 2
    t = trials()["baseline-mini-1-t00"]
    assert t["diverged"] and t["nll"] == math.inf and t["vocab_size"] == 300
    assert start("--search", rows=["baseline"]) == 0 and len(start.trained) == 2
    Path("results/mini.jsonl").unlink()
    assert start("--search", rows=["baseline"]) == 0 and len(start.trained) == 2  # the folder says so
    monkeypatch.setattr(workers, "start", lambda *_: over(2))
    with pytest.raises(ChildProcessError, match="smooth_gpt-mini-1-t00"):  # and no other one begins
        start("--search")


def test_a_tuned_table(start, capsys):
    with pytest.raises(ValueError, match="baseline"):
        start("--tuned", seeds=[2, 3])
    assert start("--search", rows=["baseline"]) == 0
    with pytest.raises(ValueError, match="baseline"):
        start("--tuned", seeds=[2, 3], trials=4)
    assert start("--tuned", seeds=[2, 3], rows=["baseline"]) == 0 and len(start.trained) == 4
    best = best_of(trials_of(trials().values(), "baseline", 2))
    rows = Store(Path("results/mini.jsonl")).rows("text")
    for row in (r for r in rows if "training" in r):
        assert {k: row["training"][k] for k in best["point"]} == best["point"]
    with pytest.raises(ValueError, match="seeds"):
        start("--tuned", seeds=[1, 2], tune_seed=7, rows=["baseline"])
    assert start("--tuned", "--partial", seeds=[2, 3]) == 0 and len(start.trained) == 4
    with pytest.raises(ValueError, match="flags"):
        start("--tuned", seeds=[2, 3], rows=["baseline"], flags="--max_steps=9")
    with pytest.raises(ValueError, match="weight_decay"):
        start("--tuned", seeds=[2, 3], rows=["baseline --weight_decay=0.3"])
    capsys.readouterr()  # another table may take its points from there
    other = dict(name="other", tuning="results/mini.jsonl", seeds=[4], rows=["baseline"])
    assert start("--tuned", "--commands", **other) == 0
    said = capsys.readouterr().out.split()
    assert f"--gain={best['point']['gain']:g}" in said and "--seed=4" in said
