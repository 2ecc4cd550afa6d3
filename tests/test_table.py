"""A table of rows x seeds: what is done is kept, what failed is named, views are made of the rows."""

import os
import shutil
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

import heads
import table
from common import places
from common.config import read
from config.defaults import TrainConfig
from data.open import prepared
from table import TableConfig
from tables import workers
from tables.curve import CurveMeasure
from tables.find import find_measure
from tables.jobs import Job
from tables.measure import kept_rows, left_out, open_runs, unchanged
from tables.search import Search
from tables.store import Store
from tables.text import TextMeasure
from tests.fixtures import TINY, over, scale, train_in_process
from training import checkpoint
from training.run import Run

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
OVER = {"grammar": "heads", "climbs_real": "climbs"}  # a table that is read after another one
ELSEWHERE = {"mnist", "mnist_brief", "images", "images_ablation"}  # whose data or runs are not here
TABLES = sorted((*ROOT.glob("config/tables/*.py"), *ROOT.glob("labs/*/config/tables/*.py")))
TABLES = [path for path in TABLES if path.stem not in ELSEWHERE]


def asked(*files: str, **changes) -> TableConfig:
    return replace(read(TableConfig, [f"config/tables/{name}.py" for name in files]), **changes)


def jobs_of(c: TableConfig) -> list[Job]:
    return table.jobs_of(c, Store(Path(c.results) / f"{c.name}.jsonl"))


# ---- what is asked for -------------------------------------------------------------------------------------


def test_a_run_knows_its_row(trained):
    """By its config files; an older one, or one without such, is its own row."""
    c = read(TrainConfig, ["config/sig_gpt.py", "config/brief.py", "config/tiny.py", "--row=mine"])
    assert (c.row, c.overlay) == ("mine", "brief-tiny")
    (entry,) = open_runs([f"other={trained}"])
    assert entry.facts()["row"] == "other" and entry.facts()["overlay"] == ""


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_the_committed_tables_are_sound(path, tmp_path):
    """Whether or not a table's search is made; and that search."""
    c = asked(*filter(None, (OVER.get(path.stem), path.stem)), tuned=False, results=str(tmp_path))
    store = Store(tmp_path / "x.jsonl")
    jobs = table.jobs_of(replace(c, seeds=c.seeds[:1]), store)
    measure = find_measure(c.measure)
    config = table.config_of_measure(measure, c, [str(job.out) for job in jobs])
    assert len(jobs) == len(c.rows) and measure.check(config, [job.wanted for job in jobs])
    if c.space:
        Search(replace(c, design=1), store).check()


# ---- which rows are of the same training -------------------------------------------------------------------


def test_committed_rows_are_those_of_their_table():
    """What an earlier version did not record is the default, and no difference; of another optimizer it is
    one, or a table of it would keep those rows."""
    c = asked("heads", results=str(RESULTS), tuning=str(RESULTS / "heads.jsonl"), seeds=[2])
    rows = {row["name"]: row for row in Store(RESULTS / "heads.jsonl").rows("text") if "training" in row}
    for flags, says in ((c.flags, ""), (f"{c.flags} --optimizer=adamw", "optimizer ('muon', not 'adamw')")):
        jobs = [job for job in jobs_of(replace(c, flags=flags)) if job.out.name in rows]
        assert len(jobs) > 20
        assert {job.differs(rows[job.out.name]["training"], rows) for job in jobs} == {says}


def test_what_is_not_recorded_has_its_default(trained):
    """On both sides: in the comparison with what is asked for, and with a run that is there."""
    (entry,) = open_runs([str(trained)])
    identity = entry.identity()
    old = {**identity, "training": {k: v for k, v in identity["training"].items() if k != "optimizer"}}
    assert unchanged(old, identity) and unchanged(identity, identity)
    assert not unchanged(old | {"weights_sha256": "0"}, identity)
    assert not unchanged({"training": identity["training"]}, identity)
    for key in ("data_sha256", "teacher_weights", "init_weights", "seed", "optimizer"):
        assert not unchanged(old | {"training": old["training"] | {key: "another"}}, identity)


@pytest.mark.parametrize(
    "flags, recorded, says",
    [
        ([], {}, ""),
        (["--optimizer=muon"], {}, "optimizer ('adamw', not 'muon')"),  # which the record does not have
        (["--dtype=float32"], {"dtype": "bfloat16"}, "dtype ('bfloat16', not 'float32')"),
        ([], {"dtype": "bfloat16"}, ""),  # "auto" may have been any
        ([], {"max_steps": 5}, "max_steps (5, not 60)"),
        (["--teacher=there/x/last"], {"teacher": "here/x/best", "source": "another place"}, ""),
    ],
)
def test_what_makes_another_training(flags, recorded, says):
    def job(*flags: str) -> Job:
        base = ("config/baseline.py", "config/tiny.py", "--max_steps=60", "--optimizer=adamw", "--teacher=x")
        return Job("baseline", "tiny", 1, Path("out"), (*base, *flags))

    record = {k: v for k, v in job().wanted.items() if k != "optimizer"} | recorded
    assert job(*flags).differs(record) == says


# ---- a whole table -----------------------------------------------------------------------------------------


@pytest.fixture
def whole(token_folder, tmp_path, monkeypatch):
    """(make, trained): make(*flags, **changes) -> exit code of a table of two rows and two seeds on the tiny
    corpus; `trained`: the names of the runs that train.py has trained, in this process."""
    trained = []

    def fake_train(command, environment):
        config = read(TrainConfig, command[2:])
        trained.append(config.name)
        return over(train_in_process(config, token_folder))

    monkeypatch.setattr(workers, "start", fake_train)
    for measure in (CurveMeasure, TextMeasure):
        monkeypatch.setattr(measure, "draw", lambda *_: [])  # test_figures.py
    monkeypatch.setattr("tables.jobs.prepared", lambda *_: token_folder)
    monkeypatch.chdir(tmp_path)
    Path("config").mkdir()
    tiny = TINY | dict(block_size=96, eval_interval=3)
    Path("config/mini.py").write_text("".join(f"{k} = {v!r}\n" for k, v in tiny.items()))
    text = f"--split=validation --texts=6 --prompt_tokens=6 --new_tokens=30 --halves=2 --data {token_folder}"

    def make(*flags, **changes):
        config = dict(rows=["baseline", "smooth_gpt"], overlay="mini", seeds=[1, 2], evaluate=text) | changes
        return table.main(["--name=mini", *flags, *(f"--{k}={v}" for k, v in config.items())])

    return make, trained


STORE = Store(Path("results/mini.jsonl"))
NAMES = [f"{row}-mini-{seed}" for seed in (1, 2) for row in ("baseline", "smooth_gpt")]
CURVE = dict(measure="curve", evaluate="")  # takes less time than text


def rows(measure: str = "text") -> dict[str, dict]:
    return {row["name"]: row for row in STORE.rows(measure)}


def test_a_whole_table_and_again(whole, capsys, monkeypatch):
    make, trained = whole
    assert make() == 0 and len(trained) == 4
    there = rows()
    assert list(there) == [*NAMES, "human", "unigram noise", "loop"]
    first = there[NAMES[0]]
    assert (first["row"], first["overlay"], first["seed"]) == ("baseline", "mini", 1)
    assert first["commit"] and "torch" in first["versions"] and first["definition"] == 1
    training = first["training"]
    assert training["learning_rate"] == TINY["learning_rate"] and training["row"] == "baseline"
    assert "/" not in "".join(map(str, training.values()))  # no place of this machine
    shown = Path("results/mini.md").read_text()
    mean = (first["ppl_tok"] + there[NAMES[2]]["ppl_tok"]) / 2
    assert f"{mean:.2f} ± " in shown and capsys.readouterr().out.count(shown.splitlines()[2]) == 1
    assert make(rows=["smooth_gpt"], seeds=[2]) == 0  # fewer rows than the page has
    assert Path("results/mini.md").read_text() == shown and list(rows()) == list(there)
    about = {"mini": "# Two heads", "other": "# Others"}
    assert make("--columns=ppl_tok", about=about) == 0
    page = Path("results/mini.md").read_text()
    assert page.startswith("# Two heads\n\n|") and f"{mean:.2f} ± " in page and "Zipf" not in page
    assert make() == 0 and Path("results/mini.md").read_text() == shown
    shutil.rmtree("out/smooth_gpt-mini-2")
    with monkeypatch.context() as m:  # a formula was edited: of runs with a folder and without
        digest = heads.head_digest
        m.setattr(heads, "head_digest", lambda name: digest(name)[: 64 - 9 * (name != "softmax")])
        assert make() == 0 and len(trained) == 4  # the row of the one without is there
    said = capsys.readouterr().err
    assert all(name in said for name in NAMES if "smooth" in name)
    shutil.rmtree("out")
    assert make() == 0 and len(trained) == 4 and Path("results/mini.md").read_text() == shown
    nan_equal = lambda rows: repr(sorted((name, sorted(row.items())) for name, row in rows.items()))
    assert nan_equal(rows()) == nan_equal(there)
    monkeypatch.setattr(TextMeasure, "definition", 2)
    assert make(seeds=[1], rows=["baseline"]) == 0 and len(trained) == 5
    assert "smooth_gpt" not in Path("results/mini.md").read_text().split("\n\n")[0]
    assert NAMES[1] in left_out(STORE, TextMeasure())[0] and NAMES[1] not in kept_rows(
        STORE, TextMeasure(), {}
    )


@pytest.mark.parametrize("gone", ["before", "after"])
def test_a_run_that_diverged_stays_in_a_table_of_kept_rows(whole, gone):
    """Whether the others' folders go before it diverges or after."""
    make, trained = whole
    two = ["baseline", "smooth_gpt --learning_rate=1e25 --grad_clip=0"]
    assert make(rows=two[:1] if gone == "before" else two) == (gone == "after")
    for name in NAMES[::2]:
        shutil.rmtree(f"out/{name}")
    for _ in range(2):
        assert make(rows=two) == 1 and len(trained) == 4
        shown = Path("results/mini.md").read_text()
        assert NAMES[1] in shown and NAMES[0] not in shown.split("could not")[1]
        assert "problem" in rows()[NAMES[3]] and rows()[NAMES[3]]["settings"] == rows()[NAMES[0]]["settings"]


def test_the_commands_of_a_table(whole, capsys):
    make, trained = whole
    assert make(seeds=[1], **CURVE) == make(rows=["baseline"], **CURVE) == 0 and len(trained) == 3
    capsys.readouterr()
    assert make(commands=True, rows=["smooth_gpt", "sig_gpt --teacher={first}"]) == 0 and len(trained) == 3
    lines = capsys.readouterr().out.splitlines()
    names = [line.split("--name=")[1].split()[0] for line in lines]
    assert names == ["smooth_gpt-mini-2", "sig_gpt-mini-1", "sig_gpt-mini-2"]
    assert all(line.startswith("python train.py config/") for line in lines)


def test_a_table_of_another_measure(whole):
    """In the same file. It keeps rows of runs without folders, but for those of an unfinished training."""
    make, trained = whole
    assert make(seeds=[1]) == make(seeds=[1], **CURVE) == 0 and len(trained) == 2
    shutil.rmtree("out")
    assert make(**CURVE) == 0 and len(trained) == 4
    assert list(rows("curve")) == NAMES and len(rows("text")) == 2 + 3
    assert "Self-BLEU" in Path("results/mini.md").read_text() and Path("results/mini.curve.md").is_file()
    shutil.rmtree("out")
    STORE.put([rows("curve")[NAMES[0]] | {"step": 5}])
    assert make(**CURVE) == 0 and len(trained) == 5
    shutil.rmtree("out")
    assert make(**CURVE, flags="--learning_rate=0.01") == 0 and len(trained) == 9


TWO = ["baseline", "stop_gradient --init_from={runs}/baseline-{overlay}-{seed}"]


def test_a_run_that_others_start_from_needs_its_folder(whole):
    make, trained = whole
    assert make(rows=TWO, seeds=[1], **CURVE) == 0 and len(trained) == 2
    shutil.rmtree("out")
    assert make(rows=TWO, seeds=[1], **CURVE) == 0 and len(trained) == 2
    assert make(rows=TWO, **CURVE) == 0 and len(trained) == 4 and not Path("out/baseline-mini-1").exists()
    shutil.rmtree("out")
    STORE.put([rows("curve")["stop_gradient-mini-2"] | {"weights_sha256": "0" * 64, "step": 5}])
    assert make(rows=TWO, **CURVE) == 0 and len(trained) == 6


def test_rows_of_other_weights_are_not_kept(whole):
    """What a run started from counts by its hash: its folder's, or its row's where the folder is gone."""
    make, trained = whole
    assert make(rows=TWO, seeds=[1], **CURVE) == 0
    shutil.rmtree("out/stop_gradient-mini-1")
    assert make(rows=TWO, seeds=[1], **CURVE) == 0 and len(trained) == 2  # kept
    scale(Path("out/baseline-mini-1/best"), 1.01)
    assert make(rows=TWO, seeds=[1], **CURVE) == 0 and len(trained) == 3
    scale(Path("out/baseline-mini-1/best"), 1.01)
    with pytest.raises(ValueError, match="init_weights"):
        make(rows=TWO, seeds=[1], **CURVE)


def test_a_source_that_is_trained_anew_decides_what_is_kept(whole, monkeypatch):
    """Trained for the sake of one row, it may have other weights than the row of another one started from."""
    make, trained = whole
    three = ["baseline", *(f"{head} --init_from={{first}}" for head in ("stop_gradient", "smooth_gpt"))]
    assert make(rows=three[:2], seeds=[1], **CURVE) == 0 and len(trained) == 2
    shutil.rmtree("out")
    inner = workers.start

    def on_another_machine(command, environment):
        process = inner(command, environment)
        if "--name=baseline-mini-1" in command:
            scale(Path("out/baseline-mini-1/last"), 1.01)
        return process

    monkeypatch.setattr(workers, "start", on_another_machine)
    assert make(rows=three, seeds=[1], **CURVE) == 0 and len(trained) == 5
    of = [rows("curve")[f"{head}-mini-1"]["training"] for head in ("stop_gradient", "smooth_gpt")]
    assert of[0]["init_weights"] == of[1]["init_weights"]


def test_a_failed_run_is_named_and_a_stopped_table_goes_on(whole, monkeypatch):
    make, trained = whole
    inner, codes = workers.start, [1, 143]

    def run(command, environment):
        at_first = codes and "--name=baseline-mini-1" in command
        return over(codes.pop(0)) if at_first else inner(command, environment)

    monkeypatch.setattr(workers, "start", run)
    with pytest.raises(ChildProcessError, match="baseline-mini-1"):
        make(**CURVE)
    assert Path("out/baseline-mini-2/last").is_dir() and not Path("results/mini.md").exists()
    assert make(**CURVE) == 143 and len(trained) == 3  # a signal: nothing else begins
    assert make(**CURVE) == 0 and len(trained) == 4 and len(rows("curve")) == 4


def test_a_table_is_of_the_last_steps(whole):
    """The source of another run and the row are the weights at the end, whatever validation says before."""
    make, trained = whole
    flags = "--eval_interval=2 --learning_rate=0.1 --min_lr=0.1 --warmup_steps=0"  # worse with each step
    assert make(rows=["baseline", "stop_gradient --init_from={first}"], seeds=[1], flags=flags) == 0
    run = Path("out/baseline-mini-1")
    steps = [Run(run, which).progress.step for which in ("best", "last")]
    row = rows()[run.name]
    assert steps[0] < steps[1] == row["step"] == 6
    assert row["weights_sha256"] == checkpoint.weights_digest(run / "last")
    assert rows()["stop_gradient-mini-1"]["training"]["init_weights"] == row["weights_sha256"]


def test_two_labs_of_one_name_are_an_error(tmp_path, monkeypatch):
    """One would take the other's place."""
    for lab in ("a", "b"):
        (tmp_path / f"labs/{lab}/same").mkdir(parents=True)
        (tmp_path / f"labs/{lab}/same/measure.py").touch()
    monkeypatch.setattr(places, "CODE", tmp_path)
    with pytest.raises(ValueError, match=r"labs\.a\.same\.measure and labs\.b\.same\.measure"):
        places.modules.__wrapped__("measure")


# ---- refusals, before any training -------------------------------------------------------------------------


def test_what_does_not_belong_together_is_refused(whole, token_folder, tmp_path, monkeypatch):
    make, trained = whole
    assert make(rows=["baseline"], seeds=[1]) == 0
    for key, change in (
        ("learning_rate", dict(rows=["baseline --learning_rate=0.5"], seeds=[1])),
        ("max_steps", dict(rows=["baseline"], seeds=[1], flags="--max_steps=5")),
        ("split", dict(evaluate=f"--texts=6 --prompt_tokens=6 --new_tokens=30 --data={token_folder}")),
        ("new_tokens", dict(evaluate="")),
        ("block_size", dict(rows=["baseline", "smooth_gpt --block_size=48"])),
        ("--seed", dict(rows=["baseline --seed=5"])),
        ("smoth_gpt", dict(own_space={"smoth_gpt": {"head_args.eps": [0.1, 0.2]}})),
    ):
        with pytest.raises(ValueError, match=key):
            make(**change)
    there = rows().values()
    for key in ("scorer", "train"):
        STORE.put([r | {"settings": r["settings"] | {key: "0" * 64}} for r in there])
        with pytest.raises(ValueError, match=key):
            make()
    monkeypatch.setattr("tables.jobs.prepared", prepared)
    with pytest.raises(FileNotFoundError, match="nosuch"):
        make(flags=f"--dataset=text --source={tmp_path / 'nosuch'}")
    Path("file").touch()
    with pytest.raises(OSError, match="file"):
        make(results="file")
    with pytest.raises(ValueError, match="--measure"):
        table.main(["out/baseline-mini-1"])
    assert len(trained) == 1


# ---- other processes ---------------------------------------------------------------------------------------


def test_a_run_that_another_process_trains_is_waited_for(whole, capsys):
    """And is not trained again, if that one has finished it."""
    make, trained = whole
    assert make(rows=["baseline"], **CURVE) == 0 and len(trained) == 2
    shutil.move("out", "there")
    shutil.rmtree("results")
    held = Path("out/baseline-mini-1")

    def train_it():
        with checkpoint.in_use(held):
            begun.set()
            while "baseline-mini-1 is in use" not in (said := capsys.readouterr().out):
                printed.append(said)
                time.sleep(0.01)
            shutil.copytree("there/baseline-mini-1", held, dirs_exist_ok=True)

    begun, printed = threading.Event(), []
    thread = threading.Thread(target=train_it)
    thread.start()
    begun.wait()
    assert make(rows=["baseline"], **CURVE) == 0 and len(trained) == 3
    thread.join()
    assert "baseline-mini-2" in "".join(printed)  # meanwhile, the other one


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
    runs = [Job("r", "", i, tmp_path / f"r{i}", (str(tmp_path / f"r{i}"),)) for i in range(jobs + 1)]
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


GOLDEN = {  # row -> PPL_eps of its seeds 1 and 2; two kinds of CPU differ by 2e-6 of it
    "baseline": (76.66685, 77.14782),
    "gs_softmax_f1": (74.75783, 75.23693),
    "entmax15": (29.52131, 30.34464),
}


def test_a_golden_table(whole):
    """Three heads, two seeds, 20 steps, end to end: the numbers are those of the commit that wrote them."""
    make, _ = whole
    assert make(rows=[*GOLDEN], flags="--max_steps=20 --dtype=float32") == 0
    found = {(r["row"], r["seed"]): r["ppl_eps"] for r in rows().values() if "seed" in r}
    want = {(row, seed): value for row, two in GOLDEN.items() for seed, value in zip((1, 2), two)}
    assert found == pytest.approx(want, rel=1e-4)
