"""The search: its points, what it takes over and keeps, and what it finds."""

import itertools
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import tune
from conftest import TINY, train_in_process
from evaluation.tuning import Store, best_of, expected_best, figure, points, propose, report

import table
import train
from config.defaults import TrainConfig
from evaluation import figures
from runtime import checkpoint, workers
from runtime.configurator import configure
from runtime.errors import UserError
from table import TableConfig

ROOT = Path(__file__).resolve().parents[1]
SPACE = {"learning_rate": [1e-3, 8e-3], "gain": [0.5, 16]}


# ---- points ------------------------------------------------------------------------------------------------


def test_the_points_are_known_in_advance():
    """Of any version of scipy: trials of one machine are those of another."""
    assert points(SPACE, 3) == [
        {"learning_rate": 0.00235, "gain": 14.1},
        {"learning_rate": 0.00449, "gain": 0.726},
        {"learning_rate": 0.00656, "gain": 3.12},
    ]
    assert [points(SPACE, n) for n in (1, 2, 5, 8)] == [points(SPACE, 16)[:n] for n in (1, 2, 5, 8)]


def test_the_points_fill_the_space_on_a_log_scale():
    at = np.log([[p["learning_rate"], p["gain"]] for p in points(SPACE, 64)])
    low, high = np.log(list(SPACE.values())).T
    for share in ((at - low) / (high - low)).T:
        counts, _ = np.histogram(share, bins=8, range=(0, 1))
        assert all(7 <= n <= 9 for n in counts)  # 8, but for the rounding to three digits


def test_every_row_has_the_same_points_and_its_own_flags_win():
    c = TableConfig(rows=["baseline", "temperature", "smooth_gpt --gain 2", "am_softmax --min_lr=1e-5"])
    c.flags = "--eval_windows=3"  # of the split that the trials are compared by: all of it
    plain, other, fixed, low = ([t.wanted for t in tune.trials_of(row, c)] for row in c.rows)
    assert [(w["learning_rate"], w["gain"]) for w in plain] == [
        (p["learning_rate"], p["gain"]) for p in points(SPACE, 8)
    ]
    for key in ("learning_rate", "gain", "min_lr"):
        assert [w[key] for w in plain] == [w[key] for w in other]
    assert {w["gain"] for w in fixed} == {2.0} and len({w["learning_rate"] for w in fixed}) == 8
    assert all(w["min_lr"] == pytest.approx(w["learning_rate"] / 10, rel=1e-2) for w in plain + fixed)
    assert {w["min_lr"] for w in low} == {1e-5}
    assert all(w["eval_interval"] == w["max_steps"] == 1000 and w["seed"] == 1 for w in plain)
    assert not any(w["eval_windows"] for w in plain)


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


def test_a_row_with_nothing_to_search_has_one_trial():
    trials = tune.trials_of("baseline --gain=2 --learning_rate=1e-3", TableConfig())
    assert [t.point for t in trials] == [{}] and trials[0].out == Path("out/baseline-small-1-t00")


@pytest.mark.parametrize(
    "change, says",
    [
        (dict(trials=0), "trials = 0"),
        (dict(rows=[]), "rows and seeds"),
        (dict(rows=["baseline", "baseline"]), "hold one twice"),
        (dict(rows=["baseline --teacher={first}"]), "give another row first"),
        (dict(rows=["baseline --teacher={frist}"]), "{frist}, of which nothing is known"),
        (dict(space={}), "give a setting to search"),
        (dict(space={"n_layer": [1, 2]}), "no setting of train.py that is a float"),
        (dict(space={"gain": [2, 1]}), r"gain = \[2, 1\]: give \[lowest, highest\]"),
        (dict(space={"gain": [0, 1]}), r"gain = \[0, 1\]"),
        (dict(space={"gain": 3}), "gain = 3"),
        (dict(flags="--no_such=1"), "no_such"),
    ],
)
def test_mistakes_are_found_before_any_training(tmp_path, change, says):
    with pytest.raises(ValueError, match=says):
        tune.check(TableConfig(**dict(rows=["baseline"], results=str(tmp_path)) | change))


def test_the_committed_searches_are_sound(tmp_path):
    for files in (["heads"], ["heads", "heads_250"], ["heads", "grammar"]):
        c = configure(TableConfig, [f"config/tables/{f}.py" for f in files])
        c.results = str(tmp_path)
        store = tune.check(c)
        assert store.path == tmp_path / f"{c.name}.tune.json"


# ---- what was found ----------------------------------------------------------------------------------------


def test_expected_best_is_the_mean_over_all_draws():
    values = [3.0, 1.0, 4.0, 1.5]
    for draws in (1, 2, 3):
        every = [min(draw) for draw in itertools.product(values, repeat=draws)]
        assert expected_best(values, draws) == pytest.approx(np.mean(every))
    assert expected_best(values, 1000) == pytest.approx(1.0)


def entry(row: str, trial: int, nll: float, **changes) -> dict:
    one = {"row": row, "trial": trial, "nll": nll, "point": points(SPACE, 16)[trial], "chosen": {}}
    one |= {"diverged": not math.isfinite(nll), "data_sha256": "a" * 64, "vocab_size": 100}
    return one | changes


def test_the_report_names_the_best_point_and_the_edges(tmp_path):
    store = Store(tmp_path / "x.tune.json")
    store.add([entry("baseline", i, nll) for i, nll in enumerate([2.0, 1.0, math.inf, 1.5])])
    store.add([entry("other", 0, 1.0)])
    text = report(Store(store.path), ["baseline", "other", "none"], SPACE, 4, 4)
    _, _, base, other = text.split("\n\n")[0].splitlines()
    cells = [cell.strip() for cell in base.split("|")[1:-1]]
    assert cells[:6] == ["baseline", "4", "1", "0.00449", "0.726 (lowest)", f"{math.e:.1f}"]
    # one that diverged counts as a uniform distribution
    assert cells[6] == f"{math.exp((2 + 1 + math.log(100) + 1.5) / 4):.1f}" and len(cells) == 9
    assert other.split("|")[7].strip() == f"{math.e:.1f}" and other.split("|")[8].strip() == "-"
    drawn = figures.write(figure(store, ["baseline", "other"], 2, 4), tmp_path / "x.tune")
    assert [p.name for p in drawn] == ["x.tune.png", "x.tune.svg"]


def test_two_processes_write_one_file(tmp_path):
    """Each adds to what the other has written since it read the file."""
    settings = {"overlay": "tiny", "space": SPACE}
    a, b = (Store(tmp_path / "x.tune.json", settings) for _ in range(2))
    a.add([entry("baseline", 0, 2.0)])
    b.add([entry("baseline", 1, math.inf)])
    both = Store(tmp_path / "x.tune.json", settings).of_row("baseline", 8)
    assert [t["nll"] for t in both] == [2.0, math.inf] and best_of(both)["trial"] == 0
    with pytest.raises(ValueError, match="other settings .overlay 'tiny', now 'brief'"):
        Store(tmp_path / "x.tune.json", {"overlay": "brief"})
    with pytest.raises(ValueError, match="different training texts"):
        a.add([entry("baseline", 2, 2.0, data_sha256="b" * 64)])
    (tmp_path / "x.tune.json").write_text('{"settings": {}, "rows": [{"row": 1}]}')
    with pytest.raises(ValueError, match="is not a search of tune.py"):
        Store(tmp_path / "x.tune.json")


# ---- a whole search ----------------------------------------------------------------------------------------


@pytest.fixture
def search(token_folder, tmp_path, monkeypatch):
    """search(command, **changes) -> exit code of tune.py or table.py on the tiny corpus, in a folder of its
    own. train.py runs in this process; `trained` has the names of its runs."""
    trained = []

    def fake_train(self, command, environment):
        config = TrainConfig.read(command[2:])
        trained.append(config.name)
        return train_in_process(config, token_folder)

    monkeypatch.setattr(workers.Trainings, "run", fake_train)
    monkeypatch.setattr("evaluation.runs.prepared", lambda *_: token_folder)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "config", "config")
    tiny = TINY | dict(block_size=96)
    Path("config/mini.py").write_text("".join(f"{k} = {v!r}\n" for k, v in tiny.items()))

    def start(command=tune, **changes):
        asked = dict(
            name="mini", overlay="mini", rows=["baseline", "smooth_gpt"], trials=2, design=2, halves=5
        )
        asked |= dict(evaluate=f"--texts=6 --prompt_tokens=6 --new_tokens=80 --data={token_folder}")
        return command.main([f"--{k}={v}" for k, v in (asked | changes).items()])

    return start, trained


def trials(name: str = "mini") -> dict:
    rows = json.loads(Path(f"results/{name}.tune.json").read_text())["rows"]
    return {t["name"]: t for t in rows}


def test_a_whole_search_and_on(search, capsys):
    start, trained = search
    assert start() == 0
    assert trained == [f"{row}-mini-1-t0{i}" for row in ("baseline", "smooth_gpt") for i in (0, 1)]
    found = trials()
    for name, t in found.items():
        progress = json.loads(Path(f"out/{name}/last/progress.json").read_text())
        config = json.loads(Path(f"out/{name}/last/config.json").read_text())
        assert t["nll"] == progress["best_val_nll"] and t["data_sha256"] == config["data_sha256"]
        assert t["point"] == {"learning_rate": config["learning_rate"], "gain": config["gain"]}
        assert t["dtype"] == "float32" and t["seed"] == 1 and t["commit"] and not t["diverged"]
    assert "/" not in json.dumps([t["chosen"] for t in found.values()])  # no place of this machine
    assert all(Path(f"results/mini.tune.{end}").is_file() for end in ("md", "png", "svg"))
    shutil.rmtree("out")
    assert start() == 0 and len(trained) == 4  # all is in the file
    assert start(trials=4, design=2) == 0 and len(trained) == 8 and trials().items() >= found.items()
    further = trials()["smooth_gpt-mini-1-t03"]["point"]
    assert further == propose(SPACE, Store(Path("results/mini.tune.json")).of_row("smooth_gpt", 3))
    assert "(8 of" not in capsys.readouterr().out
    with pytest.raises(ValueError, match="trials of other settings .flags '', now '--max_steps=5'"):
        start(flags="--max_steps=5")


def test_runs_that_were_trained_by_hand_are_taken_over(search, token_folder):
    start, trained = search
    hand = ["config/baseline.py", "config/mini.py", "--learning_rate=0.00235", "--min_lr=0.000235"]
    hand += ["--gain=14.1", "--seed=1", "--eval_interval=6"]
    hand += ["--name=baseline-mini-1-t00", "--out_dir=out/baseline-mini-1-t00"]
    assert train_in_process(TrainConfig.read(hand), token_folder) == 0
    assert start(rows=["baseline"]) == 0 and trained == ["baseline-mini-1-t01"] and len(trials()) == 2
    other = [*hand[:5], "--seed=2", "--name=baseline-mini-1-t02", "--out_dir=out/baseline-mini-1-t02"]
    assert train_in_process(TrainConfig.read(other), token_folder) == 0
    with pytest.raises(ValueError, match="baseline-mini-1-t02 was trained with another"):
        start(rows=["baseline"], trials=3)


def test_a_row_starts_from_the_best_trial_of_the_first(search, capsys):
    start, trained = search
    rows = ["baseline", "stop_gradient --init_from={first} --gain={gain}"]
    assert start(rows=rows, commands=True) == 0
    out, err = capsys.readouterr()
    assert [line.split("--name=")[1].split()[0] for line in out.splitlines()] == [
        f"baseline-mini-1-t0{i}" for i in (0, 1)
    ]
    assert "1 rows start from the best trial of baseline" in err and not trained
    assert start(rows=rows) == 0
    best = best_of(Store(Path("results/mini.tune.json")).of_row("baseline", 2))
    for name in ("stop_gradient-mini-1-t00", "stop_gradient-mini-1-t01"):
        config = json.loads(Path(f"out/{name}/last/config.json").read_text())
        assert config["init_from"] == f"out/{best['name']}/last" and config["gain"] == best["point"]["gain"]
        assert trials()[name]["point"].keys() == {"learning_rate"}
    shutil.rmtree("out")
    assert start(rows=rows) == 0 and len(trained) == 4
    assert start(rows=[*rows, "sparse_softmax_k --init_from={first}"]) == 0
    assert trained[4:] == [best["name"], "sparse_softmax_k-mini-1-t00", "sparse_softmax_k-mini-1-t01"]


def test_a_trial_that_diverges_is_a_result_and_a_mistake_is_none(search, monkeypatch):
    start, trained = search
    real = train.Trainer.train_step

    def step(self):
        if self.config.gain > 10:
            raise train.Diverged("step 1: the loss is not finite")
        return real(self)

    monkeypatch.setattr(train.Trainer, "train_step", step)
    assert start(rows=["baseline"]) == 0 and len(trained) == 2
    t = trials()["baseline-mini-1-t00"]
    assert t["diverged"] and t["nll"] == "inf" and t["vocab_size"] == 300
    assert start(rows=["baseline"]) == 0 and len(trained) == 2
    Path("results/mini.tune.json").unlink()
    assert start(rows=["baseline"]) == 0 and len(trained) == 2  # the folder says so
    monkeypatch.setattr(workers.Trainings, "run", lambda *_: 2)
    with pytest.raises(
        ChildProcessError, match=r"^smooth_gpt-mini-1-t00 failed"
    ):  # and no further one begins
        start()


def test_a_tuned_table(search, capsys):
    start, trained = search
    with pytest.raises(ValueError, match=r"no best point yet of baseline .0 of 2 trials.*python tune.py"):
        start(table, tuned=True, seeds=[2, 3])
    assert start(rows=["baseline"]) == 0
    with pytest.raises(ValueError, match="tuned at seed 1, a tuned table needs others"):
        start(table, tuned=True, seeds=[1, 2])
    with pytest.raises(ValueError, match=r"no best point yet of baseline .2 of 4 trials"):
        start(table, tuned=True, seeds=[2, 3], trials=4)
    assert start(table, tuned=True, seeds=[2, 3], rows=["baseline"]) == 0 and len(trained) == 4
    best = best_of(Store(Path("results/mini.tune.json")).of_row("baseline", 2))
    rows = json.loads(Path("results/mini.runs.json").read_text())["rows"]
    for row in (r for r in rows if "training" in r):
        assert {k: row["training"][k] for k in best["point"]} == best["point"]
    assert start(table, tuned=True, seeds=[2, 3], partial=True) == 0 and len(trained) == 4
    assert "smooth_gpt (0 of 2 trials): left out" in capsys.readouterr().err
    # another table may take its points from there
    asked = dict(name="other", tuned=True, tuning="results/mini.tune.json", seeds=[4], rows=["baseline"])
    assert start(table, **asked, commands=True) == 0
    said = capsys.readouterr().out.split()
    assert f"--gain={best['point']['gain']:g}" in said and "--seed=4" in said


def test_a_table_is_of_the_last_steps(search):
    """The teacher and the row are the weights at the end, whatever validation says of those before."""
    start, trained = search
    flags = "--eval_interval=2 --learning_rate=0.1 --min_lr=0.1 --warmup_steps=0"  # worse with each step
    rows = ["baseline", "stop_gradient --init_from={first}"]
    assert start(table, rows=rows, seeds=[1], flags=flags) == 0
    run = Path("out/baseline-mini-1")
    steps = [json.loads((run / which / "progress.json").read_text())["step"] for which in ("best", "last")]
    assert steps[0] < steps[1] == 6
    rows_there = {r["name"]: r for r in json.loads(Path("results/mini.runs.json").read_text())["rows"]}
    row = rows_there["baseline-mini-1"]
    assert row["step"] == 6 and row["weights_sha256"] == checkpoint.weights_digest(run / "last")
    assert rows_there["stop_gradient-mini-1"]["training"]["init_weights"] == row["weights_sha256"]
    shutil.rmtree("out")
    assert start(table, rows=rows, seeds=[1], flags=flags) == 0 and len(trained) == 2  # both are kept


def test_a_run_of_more_steps_is_refused(search):
    start, trained = search
    assert start(table, rows=["baseline"], seeds=[1]) == 0
    with pytest.raises(ValueError, match="was trained for 6 steps, not 5"):
        start(table, rows=["baseline"], seeds=[1], flags="--max_steps=5")


# ---- a run that another process trains -------------------------------------------------------------------


def test_a_run_that_another_process_trains_is_named_and_not_waited_for(search, monkeypatch):
    start, trained = search
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("it waits for another process"))
    real = workers.Trainings.run

    def refused(self, command, environment):
        """The exit code, as of a process of its own."""
        try:
            return real(self, command, environment)
        except UserError as e:
            assert "is in use by another run" in str(e)
            return 2

    monkeypatch.setattr(workers.Trainings, "run", refused)
    held = Path("out/baseline-mini-1")
    with checkpoint.in_use(held), pytest.raises(ChildProcessError, match="^baseline-mini-1 failed"):
        start(table, rows=["baseline"], seeds=[1, 2])
    assert trained == ["baseline-mini-1", "baseline-mini-2"] and not (held / "last").exists()
    assert start(table, rows=["baseline"], seeds=[1, 2]) == 0 and trained[2:] == ["baseline-mini-1"]
