"""A table of rows x seeds: what is done is kept, what failed is named, views are made of the rows."""

import math
import os
import shutil
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

import heads
import table
import train
from common.config import read
from config.defaults import TrainConfig
from data.prepared import prepared
from evaluate import workers
from evaluate.find import find_measure
from evaluate.jobs import Run
from evaluate.measure import kept_rows, left_out, open_runs, table_rows, unchanged
from evaluate.store import Store
from evaluate.text import TextMeasure
from table import TableConfig
from tests.fixtures import TINY, over, train_in_process
from training import checkpoint

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"


def asked(*files: str, **changes) -> TableConfig:
    return replace(read(TableConfig, [f"config/tables/{name}.py" for name in files]), **changes)


def runs_of(c: TableConfig) -> list[Run]:
    return table.runs_of(c, Store(Path(c.results) / f"{c.name}.jsonl"))


# ---- what is asked for -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags, key",
    [
        (["--jobs=0"], "jobs = 0"),
        (["--rows=[]"], "rows"),
        (["--rows=['baseline','baseline']"], "rows"),
        (["--rows=['baselin']"], "config/baselin.py"),
        (["--rows=['baseline --hed=softmax']"], "hed"),
        (["--measure=order"], "measure"),
        (["--evaluate=--nonsense=1"], "nonsense"),
        (["--evaluate=--texts=1"], "texts"),
        (["--tuned", "--seeds=[1]"], "seed"),
        (
            ["--overlay=mazes", "--flags=--source='height=7 width=7 walls=3 train=9 validation=9 test=9'"],
            "mazes",
        ),
    ],
)
def test_mistakes_are_found_before_any_training(tmp_path, flags, key):
    start = ["--name=x", "--rows=['baseline']", f"--results={tmp_path}", f"--runs={tmp_path}", "--commands"]
    with pytest.raises((ValueError, OSError), match=key):
        table.main([*start, *flags])


def test_a_run_knows_its_row(trained, capsys):
    """By its config files; an older one, or one without such, is its own row."""
    files = ["config/sig_gpt.py", "config/brief.py", "config/tiny.py", "--name=x"]
    c = read(TrainConfig, files)
    assert (c.row, c.overlay, c.name) == ("sig_gpt", "brief-tiny", "x")
    assert read(TrainConfig, [*files, "--row=mine"]).row == "mine"
    (entry,) = open_runs([f"other={trained}"])
    assert entry.facts()["row"] == "other" and entry.facts()["overlay"] == ""
    assert entry.ckpt.config.keys() >= {"row", "overlay"}


@pytest.mark.parametrize("files", [["heads"], ["sig_gpt_12M"]])
def test_the_committed_tables_are_sound(files, tmp_path):
    c = asked(*files, tuned=False, results=str(tmp_path))  # whether or not its search is made
    runs = runs_of(c)
    assert len(runs) == len(c.rows) * len(c.seeds)
    measure = find_measure(c.measure)
    config = table.config_of_measure(measure, c, [str(r.out) for r in runs])
    assert measure.check(config, [r.wanted for r in runs])


# ---- the committed rows ------------------------------------------------------------------------------------


def test_committed_rows_are_those_of_their_table():
    """What an earlier version did not record is the default, and no difference; of another optimizer it is
    one, or a table of it would keep those rows."""
    c = asked("heads", results=str(RESULTS), tuning=str(RESULTS / "heads.jsonl"), partial=True)
    rows = {row["name"]: row for row in Store(RESULTS / "heads.jsonl").rows("text") if "training" in row}
    for flags, says in ((c.flags, ""), (f"{c.flags} --optimizer=adamw", "optimizer ('muon', not 'adamw')")):
        runs = [run for run in runs_of(replace(c, flags=flags)) if run.out.name in rows]
        assert len(runs) > 20
        assert {run.differs(rows[run.out.name]["training"], rows) for run in runs} == {says}


def test_what_is_not_recorded_has_its_default(trained):
    """On both sides: in the comparison with what is asked for, and with a run that is there."""
    (entry,) = open_runs([str(trained)])
    identity = entry.identity()
    old = {**identity, "training": {k: v for k, v in identity["training"].items() if k != "optimizer"}}
    assert unchanged(old, identity) and unchanged(identity, identity)
    assert not unchanged(old | {"weights_sha256": "0"}, identity)
    for key in ("data_sha256", "teacher_weights", "init_weights", "seed", "optimizer"):
        assert not unchanged(old | {"training": old["training"] | {key: "another"}}, identity)
    run = Run("baseline", "brief_adamw", 1, Path("out"), ("config/baseline.py", "config/brief_adamw.py"))
    recorded = {k: v for k, v in run.wanted.items() if k != "optimizer"}
    assert run.differs(recorded) == ""
    muon = replace(run, arguments=(*run.arguments, "--optimizer=muon"))
    assert muon.differs(recorded) == "optimizer ('adamw', not 'muon')"


def test_a_run_may_have_taken_any_dtype_unless_one_is_asked_for():
    auto, named = (
        Run("baseline", "tiny", 1, Path("out"), ("config/baseline.py", "config/tiny.py", *flags))
        for flags in ((), ("--dtype=float32",))
    )
    has = {**auto.wanted, "dtype": "bfloat16"}
    assert auto.wanted["dtype"] == "auto" and auto.differs(has) == ""
    assert named.differs(has) == "dtype ('bfloat16', not 'float32')"


# ---- a whole table -----------------------------------------------------------------------------------------


@pytest.fixture
def whole(token_folder, tmp_path, monkeypatch):
    """whole(**changes) -> exit code of a table of two rows and two seeds on the tiny corpus.

    train.py runs in this process.
    """
    trained = []

    def fake_train(command, environment):
        arguments = command[2:]
        trained.append(arguments)
        return over(train_in_process(read(TrainConfig, list(arguments)), token_folder))

    monkeypatch.setattr(workers, "start", fake_train)
    monkeypatch.setattr("evaluate.jobs.prepared", lambda *_: token_folder)
    monkeypatch.chdir(tmp_path)
    Path("config").mkdir()
    tiny = TINY | dict(block_size=96, eval_interval=3)
    Path("config/tinytable.py").write_text("".join(f"{k} = {v!r}\n" for k, v in tiny.items()))
    text = "--split=validation --texts=6 --prompt_tokens=6 --new_tokens=30 --halves=2"

    def make(**changes):
        config = dict(rows=["baseline", "smooth_gpt"], overlay="tinytable", seeds=[1, 2])
        config |= dict(evaluate=f"{text} --data {token_folder}") | changes
        return table.main(["--name=mini", *(f"--{k}={v}" for k, v in config.items())])

    return make, trained, tmp_path


def rows(measure: str = "text") -> dict[str, dict]:
    return {row["name"]: row for row in Store(Path("results/mini.jsonl")).rows(measure)}


NAMES = [f"{row}-tinytable-{seed}" for seed in (1, 2) for row in ("baseline", "smooth_gpt")]


def test_a_whole_table_and_again(whole, capsys, monkeypatch):
    make, trained, folder = whole
    assert make() == 0 and len(trained) == 4
    there = rows()
    assert list(there) == [*NAMES, "human", "unigram noise", "loop"]
    first = there[NAMES[0]]
    assert (first["row"], first["overlay"], first["seed"]) == ("baseline", "tinytable", 1)
    assert first["commit"] and "torch" in first["versions"] and first["definition"] == 1
    training = first["training"]
    assert training["learning_rate"] == TINY["learning_rate"] and training["row"] == "baseline"
    assert "/" not in "".join(map(str, training.values()))  # no place of this machine
    shown = Path("results/mini.md").read_text()
    mean = (first["ppl_tok"] + there[NAMES[2]]["ppl_tok"]) / 2
    assert f"{mean:.2f} ± " in shown and capsys.readouterr().out.count(shown.splitlines()[2]) == 1
    # views are functions of the rows
    made = TextMeasure().view(table_rows(Store(Path("results/mini.jsonl")), TextMeasure()))
    assert made.markdown == shown and made.sheet == Path("results/mini.csv").read_text()
    shutil.rmtree("out/smooth_gpt-tinytable-2")
    assert make() == 0 and len(trained) == 4  # its row is there
    with monkeypatch.context() as m:  # a formula was edited: of runs with a folder and without
        digest = heads.head_digest
        m.setattr(heads, "head_digest", lambda name: digest(name)[: 64 - 9 * (name != "softmax")])
        assert make() == 0 and len(trained) == 4
    said = capsys.readouterr().err
    assert all(name in said for name in NAMES if "smooth" in name)
    shutil.rmtree("out")
    assert make() == 0 and len(trained) == 4 and Path("results/mini.md").read_text() == shown
    nan_equal = lambda rows: repr(sorted((name, sorted(row.items())) for name, row in rows.items()))
    assert nan_equal(rows()) == nan_equal(there)
    # another setting of a training than the rows', which they do not name: it has the default
    assert make(flags="--optimizer=muon", seeds=[1], rows=["baseline"]) == 0 and len(trained) == 5
    assert rows()[NAMES[0]]["training"]["optimizer"] == "muon"


def test_a_run_that_diverged_stays_in_a_table_of_kept_rows(whole, monkeypatch):
    make, trained, folder = whole
    real = train.Trainer.train_step

    def step(self):
        if self.config.name == NAMES[3]:
            raise train.Diverged("step 1: the loss is not finite")
        return real(self)

    monkeypatch.setattr(train.Trainer, "train_step", step)
    assert make() == 1 and len(trained) == 4
    for name in NAMES[:3]:
        shutil.rmtree(f"out/{name}")
    before = Path("results/mini.md").read_text()
    assert NAMES[3] in before
    assert make() == 1 and len(trained) == 4 and Path("results/mini.md").read_text() == before


def test_a_partial_table_and_its_commands(whole, capsys):
    make, trained, folder = whole
    with pytest.raises(ValueError):
        make(partial=True)
    assert make(seeds=[1]) == make(rows=["baseline"]) == 0 and len(trained) == 3
    assert make(partial=True) == 0 and len(trained) == 3
    capsys.readouterr()
    assert make(commands=True, rows=["smooth_gpt", "sig_gpt --teacher={first}"]) == 0 and len(trained) == 3
    lines = capsys.readouterr().out.splitlines()
    names = [line.split("--name=")[1].split()[0] for line in lines]
    assert names == ["smooth_gpt-tinytable-2", "sig_gpt-tinytable-1", "sig_gpt-tinytable-2"]
    assert all(line.startswith("python train.py config/") for line in lines)


def test_a_table_of_another_measure(whole, token_folder):
    """In the same file. It keeps rows of runs without folders, but for those of an unfinished training."""
    make, trained, folder = whole
    curve = dict(measure="curve", evaluate="")
    assert make(seeds=[1]) == make(seeds=[1], **curve) == 0 and len(trained) == 2
    shutil.rmtree("out")
    assert make(**curve) == 0 and len(trained) == 4
    assert list(rows("curve")) == NAMES and len(rows("text")) == 2 + 3
    assert "Self-BLEU" in Path("results/mini.md").read_text() and Path("results/mini.curve.md").is_file()
    shutil.rmtree("out")
    store = Store(Path("results/mini.jsonl"))
    store.put([rows("curve")[NAMES[0]] | {"step": 5}])
    assert make(**curve) == 0 and len(trained) == 5
    shutil.rmtree("out")
    assert make(**curve, flags="--learning_rate=0.01") == 0 and len(trained) == 9


def test_a_run_that_others_start_from_needs_its_folder(whole):
    make, trained, folder = whole
    two = ["baseline", "stop_gradient --init_from={runs}/baseline-{overlay}-{seed}"]
    assert make(rows=two, seeds=[1]) == 0 and len(trained) == 2
    shutil.rmtree("out")
    assert make(rows=two, seeds=[1]) == 0 and len(trained) == 2
    assert make(rows=two) == 0 and len(trained) == 4 and not Path("out/baseline-tinytable-1").exists()
    shutil.rmtree("out")
    store = Store(Path("results/mini.jsonl"))
    store.put([rows()["stop_gradient-tinytable-2"] | {"weights_sha256": "0" * 64, "step": 5}])
    assert make(rows=two) == 0 and len(trained) == 6  # the baseline of seed 2, and what starts from it


def scaled(path: Path, factor: float) -> None:
    path = path / "model.safetensors"
    save_file({k: v * factor for k, v in load_file(path).items()}, path)


def test_rows_of_other_weights_are_not_kept(whole):
    """What a run started from counts by its hash: its folder's, or its row's where the folder is gone."""
    make, trained, folder = whole
    two = ["baseline", "stop_gradient --init_from={runs}/baseline-{overlay}-{seed}"]
    assert make(rows=two, seeds=[1]) == 0
    shutil.rmtree("out/stop_gradient-tinytable-1")
    assert make(rows=two, seeds=[1]) == 0 and len(trained) == 2  # kept
    scaled(Path("out/baseline-tinytable-1/best"), 1.01)
    assert make(rows=two, seeds=[1]) == 0 and len(trained) == 3
    scaled(Path("out/baseline-tinytable-1/best"), 1.01)
    with pytest.raises(ValueError, match="init_from"):
        make(rows=two, seeds=[1])


def test_a_source_that_is_trained_anew_decides_what_is_kept(whole, monkeypatch):
    """Trained for the sake of one row, it may have other weights than the row of another one started from."""
    make, trained, folder = whole
    three = ["baseline", *(f"{head} --init_from={{first}}" for head in ("stop_gradient", "smooth_gpt"))]
    assert make(rows=three[:2], seeds=[1]) == 0 and len(trained) == 2
    shutil.rmtree("out")
    inner = workers.start

    def on_another_machine(command, environment):
        process = inner(command, environment)
        if "--name=baseline-tinytable-1" in command:
            scaled(Path("out/baseline-tinytable-1/last"), 1.01)
        return process

    monkeypatch.setattr(workers, "start", on_another_machine)
    assert make(rows=three, seeds=[1]) == 0 and len(trained) == 5
    weights = [
        rows()[f"{head}-tinytable-1"]["training"]["init_weights"] for head in ("stop_gradient", "smooth_gpt")
    ]
    assert weights[0] == weights[1]


def test_a_failed_run_is_named_and_a_stopped_table_goes_on(whole, monkeypatch):
    make, trained, folder = whole
    inner, codes = workers.start, [1, 143]

    def run(command, environment):
        at_first = codes and "--name=baseline-tinytable-1" in command
        return over(codes.pop(0)) if at_first else inner(command, environment)

    monkeypatch.setattr(workers, "start", run)
    with pytest.raises(ChildProcessError, match="baseline-tinytable-1"):
        make()
    assert Path("out/baseline-tinytable-2/last").is_dir() and not Path("results/mini.md").exists()
    assert make() == 143 and len(trained) == 3  # a signal: nothing else begins
    assert make() == 0 and len(trained) == 4 and len(rows()) == 4 + 3


def test_a_run_of_no_numbers_is_a_row_that_says_so(whole):
    make, trained, folder = whole
    assert make(seeds=[1]) == 0
    scaled(Path("out/smooth_gpt-tinytable-1/last"), math.nan)
    for _ in range(2):  # the second time it is kept
        assert make(seeds=[1]) == 1
        shown = Path("results/mini.md").read_text()
        assert "| baseline" in shown and "smooth_gpt-tinytable-1" in shown
    assert "problem" in rows()["smooth_gpt-tinytable-1"] and len(trained) == 2


def test_a_table_is_of_the_last_steps(whole):
    """The source of another run and the row are the weights at the end, whatever validation says before."""
    make, trained, folder = whole
    flags = "--eval_interval=2 --learning_rate=0.1 --min_lr=0.1 --warmup_steps=0"  # worse with each step
    two = ["baseline", "stop_gradient --init_from={first}"]
    assert make(rows=two, seeds=[1], flags=flags) == 0
    run = Path("out/baseline-tinytable-1")
    steps = [checkpoint.load(run / which, weights=False).progress["step"] for which in ("best", "last")]
    row = rows()[run.name]
    assert steps[0] < steps[1] == row["step"] == 6
    assert row["weights_sha256"] == checkpoint.weights_digest(run / "last")
    assert rows()["stop_gradient-tinytable-1"]["training"]["init_weights"] == row["weights_sha256"]


# ---- refusals, before any training -------------------------------------------------------------------------


def test_another_run_in_its_folder_is_refused(whole):
    make, *_ = whole
    assert make(rows=["baseline"], seeds=[1]) == 0
    with pytest.raises(ValueError, match="learning_rate"):
        make(rows=["baseline --learning_rate=0.5"], seeds=[1])
    with pytest.raises(ValueError, match="steps"):
        make(rows=["baseline"], seeds=[1], flags="--max_steps=5")


def test_rows_of_other_settings_or_of_another_text_are_refused_before_training(whole, token_folder):
    make, trained, folder = whole
    assert make(rows=["baseline"], seeds=[1]) == 0
    other = f"--split=validation --texts=7 --prompt_tokens=6 --new_tokens=30 --data={token_folder}"
    with pytest.raises(ValueError, match="texts"):
        make(evaluate=other)
    there = rows().values()
    for key in ("scorer", "train"):
        changed = [r | {"settings": r["settings"] | {key: "0" * 64}} for r in there]
        Store(Path("results/mini.jsonl")).put(changed)
        with pytest.raises(ValueError, match=key):
            make()
    assert len(trained) == 1


def test_rows_of_another_definition_are_left_out_and_named(whole, monkeypatch):
    make, trained, folder = whole
    assert make(seeds=[1]) == 0
    monkeypatch.setattr(TextMeasure, "definition", 2)
    assert make(seeds=[1], rows=["baseline"]) == 0 and len(trained) == 2  # measured anew, of the same weights
    assert "smooth_gpt" not in Path("results/mini.md").read_text().split("\n\n")[0]
    assert rows()["baseline-tinytable-1"]["definition"] == rows()["human"]["definition"] == 2
    store = Store(Path("results/mini.jsonl"))
    assert "smooth_gpt-tinytable-1" in left_out(store, TextMeasure())[0]
    assert "smooth_gpt-tinytable-1" not in kept_rows(store, TextMeasure(), {})


def test_what_cannot_be_is_found_before_any_training(whole, tmp_path, monkeypatch):
    make, trained, folder = whole
    with pytest.raises(ValueError, match="prompt_tokens"):
        make(evaluate="")
    with pytest.raises(ValueError, match="block_size"):
        make(rows=["baseline", "smooth_gpt --block_size=48"], seeds=[1])
    Path("file").touch()
    with pytest.raises(OSError):
        make(results="file")
    monkeypatch.setattr("evaluate.jobs.prepared", prepared)
    with pytest.raises(FileNotFoundError, match="nosuch"):
        make(flags=f"--dataset=text --source={tmp_path / 'nosuch'}")
    assert not trained


def test_a_run_that_another_process_trains_is_waited_for(whole, token_folder, capsys):
    """And is not trained again, if that one has finished it."""
    make, trained, folder = whole
    assert make(rows=["baseline"]) == 0 and len(trained) == 2
    shutil.move("out", "there")
    shutil.rmtree("results")
    held = Path("out/baseline-tinytable-1")

    def train_it():
        with checkpoint.in_use(held):
            begun.set()
            while "baseline-tinytable-1 is in use" not in (said := capsys.readouterr().out):
                printed.append(said)
                time.sleep(0.01)
            shutil.copytree("there/baseline-tinytable-1", held, dirs_exist_ok=True)

    begun, printed = threading.Event(), []
    thread = threading.Thread(target=train_it)
    thread.start()
    begun.wait()
    assert make(rows=["baseline"]) == 0 and len(trained) == 3
    thread.join()
    assert "baseline-tinytable-2" in "".join(printed)  # meanwhile, the other one


@pytest.mark.parametrize(
    "number, jobs", [(signal.SIGTERM, 1), (signal.SIGINT, 1), (signal.SIGHUP, 1), (signal.SIGTERM, 2)]
)
def test_a_signal_stops_the_trainings_and_waits_for_them(tmp_path, monkeypatch, number, jobs):
    """A signal to table.py alone: its trainings save, are waited for, and no other starts."""
    code = (
        "import pathlib, signal, sys, time\nout = pathlib.Path(sys.argv[1])\n"
        "def save(*_):\n out.with_suffix('.saved').touch()\n sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, save)\nout.with_suffix('.begun').touch()\ntime.sleep(60)"
    )
    runs = [Run("r", "", i, tmp_path / f"r{i}", (str(tmp_path / f"r{i}"),)) for i in range(jobs + 1)]
    real = workers.subprocess.Popen
    program = [sys.executable, "-c", code]
    environments = []

    def popen(command, env, stdin):
        environments.append(env)
        return real([*program, command[2]], env=env, stdin=stdin)

    monkeypatch.setattr(workers.subprocess, "Popen", popen)

    def send():
        while not all(run.out.with_suffix(".begun").exists() for run in runs[:jobs]):
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    before = [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    thread = threading.Thread(target=send)
    thread.start()
    with pytest.raises(workers.TrainingsStopped) as e:
        workers.train_all(runs, jobs)
    thread.join()
    assert e.value.args == (number,) and not runs[jobs].out.with_suffix(".begun").exists()
    assert {env["OMP_NUM_THREADS"] for env in environments} == {"1"}  # as the user has it (conftest)
    assert all(run.out.with_suffix(".saved").exists() for run in runs[:jobs])
    assert before == [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
