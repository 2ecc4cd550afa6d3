"""A table of rows x seeds: what is done is kept, what failed is named, views are made of the rows."""

import json
import math
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

import table
from common import places
from common.config import read
from config.defaults import TrainConfig
from data.open import prepared
from tables import curve, figures, workers
from tables.checks import check_planned
from tables.curve import CurveMeasure
from tables.jobs import Job, jobs_of
from tables.measure import open_runs, unchanged
from tables.search import Search
from tables.settings import TableConfig
from tables.store import Store
from tables.text import TextMeasure
from tests.fixtures import TINY, over, scale, seal, train_in_process
from training.checkpoint import weights_digest
from training.run import Run

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
OVER = {"grammar": "heads", "climbs_real": "climbs"}  # a table that is read after another one
ELSEWHERE = {"mnist", "mnist_brief", "images", "images_ablation"}  # whose data or runs are not here
TABLES = sorted((*ROOT.glob("config/tables/*.py"), *ROOT.glob("labs/*/config/tables/*.py")))
TABLES = [path for path in TABLES if path.stem not in ELSEWHERE]


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_the_committed_tables_are_sound(path, tmp_path, monkeypatch, capsys):
    """A table and its search, made anew elsewhere."""
    monkeypatch.setattr("tables.jobs.prepared", lambda *_: None)
    files = [f"config/tables/{name}.py" for name in (OVER.get(path.stem), path.stem) if name]
    anew = [*files, "--commands", f"--runs={tmp_path}", f"--results={tmp_path}"]
    c = read(TableConfig, files)
    first, another = "{first}", "{runs}/baseline-{overlay}"  # what rows wait for; a search has no such names
    for flags, waits in (
        (["--tuned=False", f"--seeds={c.seeds[0]}"], (first, another)),
        (["--search", "--design=1"], (first,)),
    ):
        assert table.main([*anew, *flags]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == sum(not any(word in row for word in waits) for row in c.rows), flags


def test_committed_rows_are_those_of_their_table():
    """What an earlier version did not record is the default, and no difference; of another optimizer it is
    one, or a table of it would keep those rows."""
    c = read(TableConfig, ["config/tables/heads.py"])
    c.seeds, store = [2], Store(RESULTS / "heads.jsonl")
    rows, points = {row["name"]: row for row in store.rows("text")}, Search(c, store).best_points()
    for flags, says in (("", ""), ("--optimizer=adamw", "optimizer ('muon', not 'adamw')")):
        c.flags = flags
        jobs = [job for job in jobs_of(c, points) if job.name in rows]
        assert len(jobs) > 20
        assert {job.differs(rows[job.name]["training"], rows) for job in jobs} == {says}


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
        return Job(Path("out"), (*base, *flags))

    record = {k: v for k, v in job().wanted.items() if k != "optimizer"} | recorded
    assert job(*flags).differs(record) == says


@pytest.mark.parametrize("flags, text", [([], "standard"), (["--data=mine"], "mine")])
def test_a_run_is_compared_with_the_text_it_is_trained_on(flags, text, monkeypatch):
    made = {
        name: {"splits": {"train": {"sha256": name}}, "corpus": "grammar", "tokenizer": "words"}
        for name in ("standard", "mine")
    }
    monkeypatch.setattr("tables.jobs.folder_of", lambda *_: Path("standard"))
    monkeypatch.setattr("tables.jobs.read_made", lambda path: made[str(path)])
    job = Job(Path("out"), ("config/baseline.py", "config/tiny.py", *flags))
    of = {"dataset": "grammar", "tokenizer": "words"} if flags else {}  # of --data they are the folder's
    record = vars(read(TrainConfig, list(job.arguments))) | of
    assert job.differs(record | {"data_sha256": text}) == ""
    assert job.differs(record | {"data_sha256": "another"})


def test_texts_of_two_folders_are_no_table(token_folder, tmp_path):
    jobs = [Job(Path(name), ("config/baseline.py", f"--data={name}")) for name in ("a", "b")]
    made = [job.wanted | {"data": str(folder)} for job, folder in zip(jobs, (token_folder, tmp_path))]
    check_planned([made[0], made[0]])
    with pytest.raises(ValueError, match="token files"):
        check_planned(made)


def test_a_run_knows_its_row_and_whether_it_is_unchanged(trained):
    """An older run, or one without config files, is its own row. What is not recorded has its default."""
    c = read(TrainConfig, ["config/sig_gpt.py", "config/brief.py", "config/tiny.py", "--row=mine"])
    assert (c.row, c.overlay) == ("mine", "brief-tiny")
    (entry,) = open_runs([f"other={trained}"])
    assert entry.facts()["row"] == "other" and entry.facts()["overlay"] == ""
    identity = entry.identity()
    old = {**identity, "training": {k: v for k, v in identity["training"].items() if k != "optimizer"}}
    assert unchanged(old, identity) and unchanged(identity, identity)
    assert not unchanged(old | {"weights_sha256": "0"}, identity)
    assert not unchanged({"training": identity["training"]}, identity)
    for key in ("data_sha256", "teacher_weights", "init_weights", "seed", "optimizer"):
        assert not unchanged(old | {"training": old["training"] | {key: "another"}}, identity)


def test_two_labs_of_one_name_are_an_error(tmp_path, monkeypatch):
    """One would take the other's place."""
    for lab in ("a", "b"):
        (tmp_path / f"labs/{lab}/same").mkdir(parents=True)
        (tmp_path / f"labs/{lab}/same/measure.py").touch()
    monkeypatch.setattr(places, "CODE", tmp_path)
    with pytest.raises(ValueError, match=r"labs\.a\.same\.measure and labs\.b\.same\.measure"):
        places.modules.__wrapped__("measure")


@pytest.fixture
def whole(token_folder, tmp_path, monkeypatch):
    """(make, trained): make(*flags, **changes) -> exit code of a table of two seeds on the tiny corpus;
    `trained`: the names of the runs that train.py has trained, in this process."""
    trained = []

    def fake_train(command, environment):
        config = read(TrainConfig, command[2:])
        trained.append(config.name)
        return over(train_in_process(config, token_folder))

    monkeypatch.setattr(workers, "start", fake_train)
    for measure in (CurveMeasure, TextMeasure):
        monkeypatch.setattr(measure, "draw", lambda *_: [])
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
CURVE = dict(measure="curve", evaluate="")  # takes less time than text


def rows(measure: str = "text") -> dict[str, dict]:
    return {row["name"]: row for row in STORE.rows(measure)}


def names_in(commands: str) -> list[str]:
    return [line.split("--name=")[1].split()[0] for line in commands.splitlines()]


GOLDEN = {  # row -> PPL_eps of its seeds 1 and 2; two kinds of CPU differ by 2e-6 of it
    "baseline": (76.66685, 77.14782),
    "gs_softmax_f1": (74.75783, 75.23693),
    "entmax15": (29.52131, 30.34464),
}


def test_a_golden_table(whole, token_folder, tmp_path, capsys, monkeypatch):
    """Three heads, two seeds, 20 steps, end to end: the numbers are those of the commit that wrote them."""
    make, trained = whole
    ask = dict(rows=[*GOLDEN], flags="--max_steps=20 --dtype=float32")
    names = [f"{row}-mini-{seed}" for seed in (1, 2) for row in GOLDEN]
    assert make(**ask) == 0 and trained == names
    there, page = rows(), Path("results/mini.md").read_text()
    assert list(there) == [*names, "human", "unigram noise", "loop"]
    found = {(r["row"], r["seed"]): r["ppl_eps"] for r in there.values() if "seed" in r}
    want = {(row, seed): value for row, two in GOLDEN.items() for seed, value in zip((1, 2), two)}
    assert found == pytest.approx(want, rel=1e-4)
    first = there[names[0]]
    assert (first["overlay"], first["definition"], first["step"]) == ("mini", 1, 20)
    assert first["commit"] and "torch" in first["versions"] and first["training"]["row"] == "baseline"
    assert "/" not in "".join(map(str, first["training"].values()))  # no place of this machine
    mean = (first["ppl_tok"] + there[names[3]]["ppl_tok"]) / 2
    assert f"{mean:.2f} ± " in page and capsys.readouterr().out.count(page.splitlines()[2]) == 1

    # The same rows, seen otherwise: fewer of them asked for, chosen columns, another measure
    assert make(**ask | dict(rows=["entmax15"], seeds=[2])) == 0
    assert Path("results/mini.md").read_text() == page and list(rows()) == list(there)
    assert make("--columns=ppl_tok", **ask, about={"mini": "# Heads", "other": "# Others"}) == 0
    chosen = Path("results/mini.md").read_text()
    assert chosen.startswith("# Heads\n\n|") and f"{mean:.2f} ± " in chosen and "Zipf" not in chosen
    assert make(**ask | CURVE) == 0 and list(rows("curve")) == names
    assert Path("results/mini.curve.md").is_file() and Path("results/mini.md").read_text() == chosen

    # What does not belong to it is refused
    settings = f"--texts=6 --prompt_tokens=6 --new_tokens=30 --data={token_folder}"
    for key, change in (
        ("learning_rate", dict(rows=["baseline --learning_rate=0.5"])),
        ("max_steps", dict(flags="--max_steps=5")),
        ("split", dict(evaluate=settings)),
        ("new_tokens", dict(evaluate="")),
        ("block_size", dict(rows=["baseline", "smooth_gpt --block_size=48"])),
        ("--seed", dict(rows=["baseline --seed=5"])),
        ("{nosuch}", dict(rows=["baseline --teacher={nosuch}"])),
        ("share a file", dict(seeds=[1, 1])),
    ):
        with pytest.raises(ValueError, match=key):
            make(**ask | change)
    whole_store = STORE.path.read_bytes()
    for key in ("scorer", "train"):
        STORE.put([r | {"settings": r["settings"] | {key: "0" * 64}} for r in there.values()])
        with pytest.raises(ValueError, match=key):
            make(**ask)
    STORE.path.write_bytes(whole_store)
    with monkeypatch.context() as m, pytest.raises(FileNotFoundError, match="nosuch"):
        m.setattr("tables.jobs.prepared", prepared)
        make(flags=f"--dataset=text --source={tmp_path / 'nosuch'}")
    Path("file").touch()
    with pytest.raises(OSError, match="file"):
        make(results="file")
    with pytest.raises(ValueError, match="--measure"):
        table.main([f"out/{names[0]}"])

    # The code has another commit by now: of runs with a folder and without
    shutil.rmtree(f"out/{names[1]}")
    capsys.readouterr()
    with monkeypatch.context() as m:
        m.setattr(table, "commit", lambda: "later")
        assert make(**ask) == 0
    said = capsys.readouterr().err.split("note: ")[1]
    assert all(name in said for name in names)

    # One that diverges is a row, whether the others' folders are there or not
    diverging = "smooth_gpt --learning_rate=1e25 --grad_clip=0"
    heir = "sigmoid --init_from={runs}/smooth_gpt-{overlay}-{seed}/last"
    for _ in range(2):
        assert make(**ask | dict(rows=[*GOLDEN, diverging, heir], seeds=[1])) == 1
        assert trained[6:] == ["smooth_gpt-mini-1"] and "diverged" in rows()["sigmoid-mini-1"]["problem"]
        bad = rows()["smooth_gpt-mini-1"]
        assert "problem" in bad and bad["settings"] == first["settings"]
        assert "smooth_gpt-mini-1" in Path("results/mini.md").read_text().split("could not")[0]
        for name in names:
            shutil.rmtree(f"out/{name}", ignore_errors=True)

    # All rows are kept, without a folder; of another definition none
    assert make(**ask) == 0 and len(trained) == 7
    as_text = lambda rows: json.dumps([rows[name] for name in there], sort_keys=True)  # nan is nan
    assert as_text(rows()) == as_text(there)
    monkeypatch.setattr(TextMeasure, "definition", 2)
    assert make(**ask | dict(rows=["baseline"], seeds=[1])) == 0 and trained[7:] == [names[0]]
    assert "entmax15" not in Path("results/mini.md").read_text().split("\n\n")[0]
    assert f"left out: {names[1]}" in capsys.readouterr().out


THREE = ["baseline", *(f"{head} --init_from={{first}}" for head in ("stop_gradient", "smooth_gpt"))]


def test_a_table_stops_goes_on_and_trains_what_its_rows_start_from(whole, capsys, monkeypatch):
    make, trained = whole
    worse = "--eval_interval=2 --learning_rate=0.1 --min_lr=0.1 --warmup_steps=0"  # with each step
    ask = dict(rows=THREE[:2], flags=worse) | CURVE
    source, heir = (Path(f"out/{row}-mini-2") for row in ("baseline", "stop_gradient"))

    def commands() -> list[str]:
        capsys.readouterr()
        assert make("--commands", **ask) == 0
        said = capsys.readouterr().out
        assert all(line.startswith("python train.py config/") for line in said.splitlines())
        return names_in(said)

    # A training that fails is named; after a signal nothing else begins; the same command goes on
    assert commands() == ["baseline-mini-1", "baseline-mini-2"] and not trained
    inner, codes = workers.start, [1, 143]

    def run(command, environment):
        fails = codes and "--name=baseline-mini-1" in command
        return over(codes.pop(0)) if fails else inner(command, environment)

    monkeypatch.setattr(workers, "start", run)
    with pytest.raises(ChildProcessError, match="baseline-mini-1"):
        make(**ask)
    assert trained == [source.name] and not STORE.path.exists()
    assert make(**ask) == 143 and commands() == ["baseline-mini-1", heir.name] and len(trained) == 1
    assert make(**ask) == 0 and len(trained) == 4 and len(rows("curve")) == 4

    # The row, and what others start from, are the weights at the end, whatever validation says before
    row, other = (rows("curve")[f"{name}-mini-1"] for name in ("baseline", "stop_gradient"))
    assert Run("out/baseline-mini-1", "best").progress.step < 6 == row["step"]
    digest = weights_digest(Path("out/baseline-mini-1/last"))
    assert digest == row["weights_sha256"] == other["training"]["init_weights"]

    # Rows are kept without a folder; a source is trained again where a row needs it
    shutil.rmtree("out")
    assert make(**ask) == 0 and len(trained) == 4
    STORE.put([rows("curve")[heir.name] | {"step": 5}])  # of an unfinished training
    assert make(**ask) == 0 and trained[4:] == [source.name, heir.name]

    # An unfinished run is resumed
    progress = heir / "last/progress.json"
    finished = progress.read_text()
    progress.write_text(json.dumps(json.loads(finished) | {"step": 4}))
    seal(progress.parent)
    assert make("--commands", **ask) == 0 and capsys.readouterr().out.endswith(" --resume\n")
    progress.write_text(finished)
    seal(progress.parent)

    # A source counts by its weights: those of its folder, or of its row where that is gone
    scale(source / "last", 1.01)
    with pytest.raises(ValueError, match="init_weights"):
        make(**ask)
    shutil.rmtree(heir)
    assert make(**ask) == 0 and trained[6:] == [heir.name]

    # Trained again for one row, it may have other weights than another row has started from
    def on_another_machine(command, environment):
        process = inner(command, environment)
        if "--name=baseline-mini-1" in command:
            scale(Path("out/baseline-mini-1/last"), 1.01)
        return process

    monkeypatch.setattr(workers, "start", on_another_machine)
    assert make(**ask | dict(rows=THREE, seeds=[1])) == 0
    assert trained[7:] == [f"{row}-mini-1" for row in ("baseline", "stop_gradient", "smooth_gpt")]
    one, other = (rows("curve")[f"{row}-mini-1"] for row in ("stop_gradient", "smooth_gpt"))
    assert one["training"]["init_weights"] == other["training"]["init_weights"]

    # Rows of another training are not kept
    shutil.rmtree("out")
    assert make(**ask | dict(rows=["baseline"], seeds=[1], flags="")) == 0 and len(trained) == 11


@pytest.mark.parametrize("number, jobs", [(signal.SIGTERM, 1), (signal.SIGHUP, 1), (signal.SIGINT, 2)])
def test_a_signal_stops_the_trainings_and_waits_for_them(tmp_path, monkeypatch, number, jobs):
    """A signal to table.py alone: its trainings save, are waited for, and no other starts."""
    code = (
        "import pathlib, signal, sys, time\nout = pathlib.Path(sys.argv[1])\n"
        "def save(*_):\n out.with_suffix('.saved').touch()\n sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, save)\nout.with_suffix('.begun').touch()\ntime.sleep(60)"
    )
    runs = [Job(tmp_path / f"r{i}", (str(tmp_path / f"r{i}"),)) for i in range(jobs + 1)]
    real, environments = workers.subprocess.Popen, []

    def popen(command, env, stdin):
        environments.append(env)
        return real([sys.executable, "-c", code, command[3]], env=env, stdin=stdin)

    def send():
        while not all(run.out.with_suffix(".begun").exists() for run in runs[:jobs]):
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    monkeypatch.setattr(workers.subprocess, "Popen", popen)
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


def test_a_figure_as_png_and_as_pdf(tmp_path):
    """The same numbers give the same file."""

    def drawn(form):
        fig, ax = figures.pyplot().subplots()
        ax.plot([1, 2])
        return figures.write(fig, tmp_path / "x", form)

    for form, begins in (("pdf", b"%PDF"), ("png", b"\x89PNG")):
        (file,) = drawn(form)
        before = file.read_bytes()
        assert file.name == f"x.{form}" and before.startswith(begins) and b"/CreationDate" not in before
        assert drawn(form) == [file] and file.read_bytes() == before


def test_a_part_has_one_quantity_from_start_to_end(tmp_path):
    """What judges the run: the perplexity, which may be infinite, and PPL_eps of a sparse head."""
    part = {"step": 1, "val_windows": 3, "val_nll": "inf", "val_ppl": "inf", "val_ppl_eps": 9.0}
    last = {"step": 2, "val_nll_windows": math.log(8), "val_nll": 3.0, "val_ppl_eps": 20.0}
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (part, last)))

    def perplexities(sparse: bool) -> list[float]:
        return [e["val_ppl"] for e in curve.evaluations(tmp_path, True, sparse)]

    assert perplexities(True) == pytest.approx([9, 8]) and perplexities(False) == pytest.approx([math.inf, 8])
