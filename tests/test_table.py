"""A table of rows x seeds: what is done is kept, what failed is named, intervals are what they say."""

import json
import math
import os
import shutil
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import eval_orders
import pytest
from conftest import TINY, train_in_process
from evaluation.runs import Run
from evaluation.tables import read_texts, samples_file

import table
from config.defaults import TrainConfig
from data.prepared import prepared
from evaluation.columns import Column
from evaluation.intervals import differences, student_interval
from runtime import workers
from table import TableConfig


def test_student_interval():
    assert student_interval([1.0, 2.0, 3.0]) == pytest.approx(4.302653 * 1 / math.sqrt(3))
    # of many values it is the normal distribution's
    assert student_interval([0.0, 1.0] * 5000) == pytest.approx(1.96 * 0.5 / 100, rel=1e-3)
    assert math.isnan(student_interval([1.0])) and math.isnan(student_interval([1.0, math.inf]))


def test_differences_are_paired_by_seed():
    columns = (
        Column("ppl_tok", "PPL", ".2f", "low", ""),
        Column("distinct_4", "D4", ".4f", "human", ""),
        Column("tv", "TV", ".2f", "low", ""),
    )
    base = {1: {"ppl_tok": 10.0, "tv": 0.5}, 2: {"ppl_tok": 20.0, "tv": 0.5}, 3: {"ppl_tok": 40.0, "tv": 0.5}}
    d = differences(
        {2: {"ppl_tok": 21.0, "distinct_4": 1.0}, 3: {"ppl_tok": 43.0}, 4: {"ppl_tok": 0.0}}, base, columns
    )
    assert d == {"ppl_tok_diff": 2.0, "ppl_tok_diff_ci": pytest.approx(student_interval([1.0, 3.0]))}
    assert math.isnan(differences({1: {"ppl_tok": 1.0}}, base, columns)["ppl_tok_diff_ci"])


def test_texts_are_read_as_they_were_written(tmp_path):
    texts = ["a line\u2028of two\x85", "\x1c\x0c\n", ""]
    out = tmp_path / "x"
    samples_file(out, "row").parent.mkdir()
    samples_file(out, "row").write_text(
        "".join(json.dumps(t, ensure_ascii=False) + "\n" for t in texts)
    )  # as eval_diversity writes them
    assert read_texts(samples_file(out, "row")) == texts


def test_a_run_fills_in_its_seed():
    run = Run.make("sig_gpt --teacher={runs}/baseline-{overlay}-{seed}", 7, TableConfig(runs="runs"))
    assert (
        run.out == Path("runs/sig_gpt-small-7")
        and "--teacher=runs/baseline-small-7" in run.arguments
        and "--seed=7" in run.arguments
    )


@pytest.mark.parametrize(
    "change, says",
    [
        (dict(jobs=0), "jobs = 0"),
        (dict(rows=[]), "rows and seeds"),
        (dict(rows=["baseline", "baseline"]), "hold one twice"),
        (dict(rows=["baselin"]), "no config file config/baselin.py; did you mean"),
        (dict(rows=["baseline --hed=softmax"]), "did you mean 'head'"),
    ],
)
def test_mistakes_are_found_before_any_training(change, says):
    with pytest.raises((ValueError, OSError), match=says):
        table.check(TableConfig(**dict(rows=["baseline"]) | change))


@pytest.mark.parametrize("name, files", [("heads", ["heads"]), ("grammar", ["heads", "grammar"])])
def test_the_committed_tables_are_sound(name, files):
    c = table.configure(TableConfig, [f"config/tables/{f}.py" for f in files])
    assert c.tuned and c.tune_seed not in c.seeds
    runs = table.check(replace(c, tuned=False, name="other"))  # whether or not its search is made
    assert len(runs) == len(c.rows) * len(c.seeds)
    assert c.name == name and {a for r in runs for a in r.arguments if a.startswith("--teacher")} == {
        f"--teacher={c.runs}/baseline-{c.overlay}-{s}/last" for s in c.seeds
    }


@pytest.mark.parametrize(
    "flags, says",
    [
        (["--evaluate=--nonsense=1"], "nonsense"),
        (["--evaluate=--gaps=[400]"], "gaps = .400."),
        (["--evaluate=--samplers"], "--samplers needs a corpus whose truth is known .* not wikitext103"),
        (["--rows=['baseline','baseline']"], "hold one twice"),
        (["--evaluate=--windows=7"], "rows of other settings .*windows 9, now 7"),
    ],
)
def test_mistakes_of_a_table_of_orders_are_found_before_any_training(flags, says, tmp_path):
    (tmp_path / "orders.json").write_text('{"settings": {"windows": 9}, "rows": []}')
    with pytest.raises(ValueError, match=says):
        table.main(
            ["config/tables/orders.py", f"--results={tmp_path}", f"--runs={tmp_path}", "--commands", *flags]
        )


@pytest.mark.parametrize(
    "flags, says",
    [
        (["--evaluate=--gaps=150"], "gaps = .150.: these models read windows of 99 tokens"),
        (["--evaluate=--samplers", "--flags=--block_size=274"], "not mazes .*in windows of 274 tokens"),
        (["--evaluator=diversity", "--evaluate="], "is of mazes, .* no text: python eval_orders.py"),
        (["--rows=['baseline','sigma_gpt --source=walls=4']"], "trained on different token files"),
    ],
)
def test_mistakes_of_a_table_of_mazes_are_found_before_any_training(flags, says, tmp_path):
    folders = (f"--results={tmp_path}", f"--runs={tmp_path}")
    argv = ["--name=x", "--rows=['baseline']", "--overlay=mazes", "--evaluator=orders", *folders]
    with pytest.raises(ValueError, match=says):
        table.main([*argv, "--commands", *flags])


def test_masked_diffusion_in_a_table_of_text_is_found_before_any_training(tmp_path):
    with pytest.raises(ValueError, match="is masked diffusion, which has no next token"):
        table.check(TableConfig(name="x", rows=["masked_diffusion"], results=str(tmp_path)))


def test_a_damaged_row_of_a_table_of_orders_is_found_before_any_training(tmp_path):
    row = {
        "name": "baseline-small-1",
        "row": "baseline-small",
        "weights_sha256": "",
        "code": "",
        "training": 3,
    }
    settings = eval_orders.settings_of(eval_orders.read_arguments(["run"]))
    (tmp_path / "orders.json").write_text(json.dumps({"settings": settings, "rows": [row]}))
    folders = (f"--results={tmp_path}", f"--runs={tmp_path}")
    with pytest.raises(ValueError, match=r"orders\.json is not a table of this program"):
        table.main(["config/tables/orders.py", *folders, "--commands"])


def test_the_memorised_table_is_sound():
    c = table.configure(TableConfig, ["config/tables/memorise.py"])
    runs = table.check(c)
    assert len(runs) == len(c.rows) * len(c.seeds)
    assert {r.wanted["source"] for r in runs} == {"train=50000"}
    teachers = {r.wanted["teacher"] for r in runs if r.wanted["labels"] != "true"}
    assert teachers == {"out/memorise/baseline-grammar-1"}


def committed(name: str) -> tuple[TableConfig, dict]:
    """The configuration of a table in results/, and the rows of its runs by name."""
    results = Path(__file__).parents[1] / "results"
    c = TableConfig(**json.loads((results / f"{name}.json").read_text())["settings"]["table"])
    search = (results / Path(c.tuning).name) if c.tuning else ""
    rows = json.loads((results / f"{name}.runs.json").read_text())["rows"]
    c = replace(c, results=str(results), tuning=str(search), partial=True)
    return c, {r["name"]: r for r in rows if "training" in r}


TABLES = sorted(
    path.name.removesuffix(".runs.json")
    for path in (Path(__file__).parents[1] / "results").glob("*.runs.json")
    if path.name != "mnist_brief.runs.json"
)


@pytest.mark.parametrize("name", TABLES)
def test_committed_rows_are_those_of_their_tables(name):
    """What an earlier version did not record is the default, and no difference."""
    c, rows = committed(name)
    runs = [run for run in table.runs_of(c) if run.out.name in rows]
    assert len(runs) == len(rows)
    assert {run.differs(rows[run.out.name]["training"], rows) for run in runs} == {""}


def test_a_row_without_the_wanted_setting_has_its_default():
    """Or a table of another optimizer would keep the rows of an earlier version."""
    c, rows = committed("heads")
    runs = table.runs_of(replace(c, flags="--optimizer=muon"))
    lacking = [r for r in runs if "optimizer" not in rows[r.out.name]["training"]]
    assert lacking
    said = {r.differs(rows[r.out.name]["training"], rows) for r in lacking}
    assert said == {"optimizer ('adamw', not 'muon')"}


@pytest.fixture
def whole(token_folder, tmp_path, monkeypatch):
    """whole(**changes) -> exit code of a table of two rows and two seeds on the tiny corpus.

    train.py runs in this process.
    """
    trained = []

    def fake_train(self, command, environment):
        arguments = command[2:]
        trained.append(arguments)
        config = TrainConfig.read(list(arguments))
        return train_in_process(config, token_folder)

    tiny = TINY | dict(block_size=96, eval_interval=3)
    overlay = tmp_path / "tinytable.py"
    overlay.write_text("".join(f"{k} = {v!r}\n" for k, v in tiny.items()))
    real = Run.make.__func__

    def make_run(cls, *asked, **more):
        run = real(cls, *asked, **more)
        arguments = [str(overlay) if a.endswith("/tinytable.py") else a for a in run.arguments]
        return replace(run, arguments=tuple(arguments))

    monkeypatch.setattr(Run, "make", classmethod(make_run))
    monkeypatch.setattr(workers.Trainings, "run", fake_train)
    monkeypatch.setattr("evaluation.runs.prepared", lambda *_: token_folder)

    def make(**changes):
        config = (
            dict(
                rows=["baseline", "smooth_gpt"],
                overlay="tinytable",
                seeds=[1, 2],
                runs=str(tmp_path / "out"),
                results=str(tmp_path / "results"),
                halves=5,
                evaluate="--split=validation --texts=6 --prompt_tokens=6 --new_tokens=80 --data "
                + str(token_folder),
            )
            | changes
        )
        return table.main(
            [
                "--name=mini",
                *(f"--{k}={v!r}" if not isinstance(v, str) else f"--{k}={v}" for k, v in config.items()),
            ]
        )

    return make, trained, tmp_path


def test_a_whole_table_and_again(whole, capsys):
    make, trained, folder = whole
    assert make() == 0 and len(trained) == 4
    out = json.loads((folder / "results/mini.json").read_text())
    assert [r["name"] for r in out["rows"]] == ["baseline", "smooth_gpt", "human", "unigram noise", "loop"]
    assert out["commits"] and out["settings"]["table"]["seeds"] == [1, 2] and "torch" in out["versions"][0]
    runs = {r["name"]: r for r in json.loads((folder / "results/mini.runs.json").read_text())["rows"]}
    assert out["rows"][0]["ppl_tok"] == pytest.approx(
        (runs["baseline-tinytable-1"]["ppl_tok"] + runs["baseline-tinytable-2"]["ppl_tok"]) / 2
    )
    assert " ± " in (folder / "results/mini.md").read_text()
    assert all((folder / f"results/mini.curves.{end}").is_file() for end in ("png", "svg"))
    assert (
        runs["baseline-tinytable-1"]["training"]["learning_rate"] == TINY["learning_rate"]
        and runs["baseline-tinytable-1"]["curve"][-1]["val_ppl"] > 1
    )
    assert "/" not in "".join(
        str(v) for v in runs["baseline-tinytable-1"]["training"].values()
    )  # no place of this machine
    capsys.readouterr()
    shutil.rmtree(folder / "out/smooth_gpt-tinytable-2")
    before = (folder / "results/mini.csv").read_text()
    assert make() == 0 and len(trained) == 4  # its row and its texts are there
    assert "baseline-tinytable-1: kept" in capsys.readouterr().err
    (folder / "results/mini.runs.samples/smooth_gpt-tinytable-2.jsonl").unlink()
    assert make() == 0 and len(trained) == 5  # only what is missing
    shutil.rmtree(folder / "out")
    assert make() == 0 and len(trained) == 5 and (folder / "results/mini.csv").read_text() == before


def test_a_partial_table(whole):
    make, trained, folder = whole
    with pytest.raises(ValueError, match="no run of this table is finished"):
        make(partial=True)
    assert make(seeds=[1]) == make(rows=["baseline"]) == 0 and len(trained) == 3
    assert make(partial=True) == 0 and len(trained) == 3
    out = json.loads((folder / "results/mini.json").read_text())
    assert [len(r["runs"]) for r in out["rows"][:2]] == [2, 1] and "Mean of 2 seeds (smooth_gpt: 1)" in (
        folder / "results/mini.md"
    ).read_text()


def test_a_table_of_orders_needs_no_folder_of_what_it_has(whole, token_folder, capsys):
    make, trained, folder = whole
    of = dict(evaluator="orders", evaluate=f"--windows=4 --gaps=[1] --data={token_folder}")
    with pytest.raises(ValueError, match="no run of this table is finished"):
        make(partial=True, **of)
    assert make(seeds=[1], **of) == 0 and len(trained) == 2
    shutil.rmtree(folder / "out")
    assert make(**of) == 0 and len(trained) == 4
    names = {r["name"] for r in json.loads((folder / "results/mini.json").read_text())["rows"]}
    assert names == {f"{row}-tinytable-{seed}" for row in ("baseline", "smooth_gpt") for seed in (1, 2)}
    shutil.rmtree(folder / "out")
    capsys.readouterr()
    assert make(**of) == 0 and len(trained) == 4
    said = capsys.readouterr().out
    assert "4 of 4 runs are kept" in said and (folder / "results/mini.md").read_text() in said
    path = folder / "results/mini.json"
    told = json.loads(path.read_text())
    told["rows"][0]["step"] -= 1  # of a run that was not over
    path.write_text(json.dumps(told))
    assert make(**of) == 0 and len(trained) == 5
    assert make(**of, flags="--learning_rate=0.01", runs=str(folder / "other")) == 0 and len(trained) == 9


def test_a_run_that_others_start_from_needs_its_folder(whole):
    make, trained, folder = whole
    rows = ["baseline", "stop_gradient --init_from={runs}/baseline-{overlay}-{seed}"]
    assert make(rows=rows, seeds=[1]) == 0 and len(trained) == 2
    shutil.rmtree(folder / "out")
    assert make(rows=rows, seeds=[1]) == 0 and len(trained) == 2
    assert (
        make(rows=rows, seeds=[1, 2]) == 0
        and len(trained) == 4
        and not (folder / "out/baseline-tinytable-1").exists()
    )
    shutil.rmtree(folder / "out")
    (folder / "results/mini.runs.samples/stop_gradient-tinytable-2.jsonl").unlink()
    assert (
        make(rows=rows, seeds=[1, 2]) == 0 and len(trained) == 6
    )  # the baseline of seed 2, and what starts from it


def test_a_failed_run_is_named_and_the_others_are_done(whole, monkeypatch):
    make, trained, folder = whole
    inner = workers.Trainings.run
    monkeypatch.setattr(
        workers.Trainings,
        "run",
        lambda self, command, environment: (
            1 if "--name=baseline-tinytable-1" in command else inner(self, command, environment)
        ),
    )
    with pytest.raises(ChildProcessError, match="baseline-tinytable-1 failed"):
        make()
    assert (folder / "out/baseline-tinytable-2/last").is_dir() and not (folder / "results/mini.json").exists()


def test_a_run_may_have_taken_any_dtype_unless_one_is_asked_for():
    arguments = ("config/baseline.py", "config/tiny.py")
    auto, named = (
        Run("baseline", 1, Path("out"), (*arguments, *flags)) for flags in ((), ("--dtype=float32",))
    )
    has = {**auto.wanted, "dtype": "bfloat16"}
    assert auto.wanted["dtype"] == "auto" and auto.differs(has) == ""
    assert named.differs(has) == "dtype ('bfloat16', not 'float32')"


def test_a_run_of_another_configuration_is_refused(whole):
    make, *_ = whole
    assert make(rows=["baseline"]) == 0
    with pytest.raises(ValueError, match="was trained with another learning_rate"):
        make(rows=["baseline --learning_rate=0.5"])


# ---- checks first, and by content --------------------------------------------------------------------------


def test_texts_that_do_not_fit_are_found_before_any_training(whole):
    make, trained, folder = whole
    with pytest.raises(ValueError, match="prompt_tokens . new_tokens = 250 do not fit block_size = 96"):
        make(evaluate="")
    with pytest.raises(
        ValueError,
        match="smooth_gpt-tinytable-1 has block_size = 48, .*baseline-tinytable-1 has 96: contexts of differ",
    ):
        make(rows=["baseline", "smooth_gpt --block_size=48"], seeds=[1])
    assert not trained


def test_data_that_cannot_be_had_are_found_before_any_training(whole, tmp_path, monkeypatch):
    make, trained, _ = whole
    monkeypatch.setattr("evaluation.runs.prepared", prepared)
    with pytest.raises(FileNotFoundError, match="nosuch"):
        make(flags=f"--dataset=text --source={tmp_path / 'nosuch'}")
    assert not trained


def test_results_that_cannot_be_written_are_found_before_any_training(whole):
    make, trained, folder = whole
    (folder / "file").touch()
    with pytest.raises(OSError):
        make(results=str(folder / "file"))
    assert not trained


def test_results_of_other_settings_are_found_before_any_training(whole, token_folder):
    make, trained, folder = whole
    assert make(rows=["baseline"], seeds=[1]) == 0
    with pytest.raises(ValueError, match="rows of other settings .*texts 6, now 7"):
        make(
            evaluate="--split=validation --texts=7 --prompt_tokens=6 --new_tokens=80 --data "
            + str(token_folder)
        )
    path = folder / "results/mini.runs.json"
    path.write_text(path.read_text().replace(json.loads(path.read_text())["settings"]["train"], "0" * 64))
    with pytest.raises(ValueError, match="rows of other settings .training text 000000000000, now"):
        make()
    assert len(trained) == 1


def scaled(checkpoint: Path) -> None:
    from safetensors.torch import load_file, save_file

    save_file(
        {k: v * 1.01 for k, v in load_file(checkpoint / "model.safetensors").items()},
        checkpoint / "model.safetensors",
    )


def test_rows_of_other_weights_are_not_kept(whole):
    """What a run started from counts by its hash: its folder's, or its row's where the folder is gone."""
    make, trained, folder = whole
    rows = ["baseline", "stop_gradient --init_from={runs}/baseline-{overlay}-{seed}"]
    assert make(rows=rows, seeds=[1]) == 0
    shutil.rmtree(folder / "out/stop_gradient-tinytable-1")
    assert make(rows=rows, seeds=[1]) == 0 and len(trained) == 2  # kept
    scaled(folder / "out/baseline-tinytable-1/best")
    assert make(rows=rows, seeds=[1]) == 0 and len(trained) == 3
    scaled(folder / "out/baseline-tinytable-1/best")
    with pytest.raises(ValueError, match="was trained with another init_from .one with the weights"):
        make(rows=rows, seeds=[1])


def test_a_degenerate_run_is_left_out_and_named(whole, capsys):
    make, trained, folder = whole
    assert make(seeds=[1]) == 0
    from safetensors.torch import load_file, save_file

    weights = folder / "out/smooth_gpt-tinytable-1/last/model.safetensors"
    save_file({k: v * math.nan for k, v in load_file(weights).items()}, weights)
    assert (
        make(seeds=[1]) == 1 and "could not be evaluated: smooth_gpt-tinytable-1" in capsys.readouterr().err
    )
    assert [r["name"] for r in json.loads((folder / "results/mini.json").read_text())["rows"]] == [
        "baseline",
        "human",
        "unigram noise",
        "loop",
    ]


@pytest.mark.parametrize(
    "number, jobs", [(signal.SIGTERM, 1), (signal.SIGINT, 1), (signal.SIGHUP, 1), (signal.SIGTERM, 2)]
)
def test_a_signal_stops_the_trainings_and_waits_for_them(tmp_path, monkeypatch, number, jobs):
    """A signal to table.py alone: its trainings save, are waited for, and no other starts."""
    code = (
        "import pathlib, signal, sys, time\nout = pathlib.Path(sys.argv[1])\n"
        "def save(*_):\n out.with_suffix('.saved').touch()\n sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, save)\nout.touch()\ntime.sleep(60)"
    )
    runs = [Run("r", i, tmp_path / f"r{i}", (str(tmp_path / f"r{i}"),)) for i in range(jobs + 1)]
    real = workers.subprocess.Popen
    monkeypatch.setattr(
        workers.subprocess,
        "Popen",
        lambda command, env: real([sys.executable, "-c", code, command[2]], env=env),
    )

    def send():
        while not all(run.out.exists() for run in runs[:jobs]):
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    before = [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    thread = threading.Thread(target=send)
    thread.start()
    with pytest.raises(workers.Stopped) as e:
        workers.train_all(runs, jobs)
    thread.join()
    assert e.value.args == (number,) and not runs[jobs].out.exists()
    assert all(run.out.with_suffix(".saved").exists() for run in runs[:jobs])
    assert before == [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
