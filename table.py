"""A whole table: rows x seeds, trained, evaluated, and summarised with intervals. What is done is kept.

    python table.py config/tables/heads.py [--key=value ...]

Trains each row with each seed (train.py; a stopped one resumes), evaluates all runs (eval_diversity.py), and
writes results/NAME.md, .csv and .json and the figures: per row the mean over seeds, with a 95% interval. What
training decides has Student's t over the seeds; the metrics of texts have half-sampling over the texts
(evaluation/intervals.py). Hours of work: stop it with Ctrl-C or SIGTERM, its trainings save. The same command
goes on.
"""

if __name__ == "__main__":
    from runtime import configurator

    configurator.quiet_imports()

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import eval_diversity
from config.defaults import TrainConfig
from data.prepared import DATA, folder_of
from data.tokens import open_tokens
from evaluation import figures
from evaluation.settings import Settings, other_settings
from evaluation.summary import write_summary
from evaluation.tables import Row, beside, samples_file
from runtime import checkpoint
from runtime.configurator import cli, configure, help_text, wants_help
from runtime.errors import UserError
from runtime.files import check_writable, foreign, lock_of, locked, read_json
from runtime.names import check_row_name
from runtime.processes import on_stop
from runtime.resume import RESUMABLE

OURS = "a table of this program: give another --name or --results, or move it away"


@dataclass
class TableConfig:
    # fmt: off
    name: str = ""                                  # of the table; empty: the config file's
    rows: list[str] = field(default_factory=list)   # config files without folder and .py, each with its flags
    #                                                 the first is done first: it may be the others' teacher
    overlay: str = "small"                          # a config file laid over each row
    seeds: list[int] = field(default_factory=lambda: [1, 2, 3])
    partial: bool = False                           # trains nothing: a table of the runs that are finished
    jobs: int = 1                                   # trainings at a time, each with its share of the cores
    evaluate: str = ""                              # flags of eval_diversity.py
    runs: str = "out"                               # folder of the runs
    results: str = "results"                        # folder of the table
    halves: int = 200                               # random halves of the texts
    # fmt: on


@dataclass(frozen=True)
class Run:
    """One training: `arguments` of train.py.

    In a row's flags {runs}, {overlay} and {seed} are the run's: --init_from={runs}/baseline-{overlay}-{seed}.
    """

    row: str
    seed: int
    out: Path
    arguments: tuple[str, ...]

    @classmethod
    def make(cls, row: str, seed: int, c: TableConfig) -> "Run":
        if not split(row):
            raise UserError(
                f"rows = [{row!r}]: a row is the name of a config file, with flags if it needs some"
            )
        if odd := [k for k in re.findall(r"\{\w+\}", row) if k not in ("{runs}", "{overlay}", "{seed}")]:
            raise UserError(
                f"rows: {row!r} has {odd[0]}, of which nothing is known: "
                "{runs}, {overlay} and {seed} are filled in"
            )
        name, *flags = split(row)
        out = Path(c.runs) / check_row_name(f"{name}-{c.overlay}-{seed}")
        for key, value in (("runs", Path(c.runs)), ("overlay", c.overlay), ("seed", seed)):
            flags = [f.replace(f"{{{key}}}", str(value)) for f in flags]
        configs = (f"config/{name}.py", f"config/{c.overlay}.py")
        return cls(
            name, seed, out, (*configs, *flags, f"--seed={seed}", f"--name={out.name}", f"--out_dir={out}")
        )

    @property
    def started(self) -> bool:
        return any((self.out / which).is_dir() for which in ("last", "last.old", "best", "best.old"))

    @property
    def finished(self) -> bool:
        """Whether it is trained. UserError if its configuration, data or weights are not those asked for."""
        if not self.started:
            return False
        ckpt = checkpoint.load(checkpoint.find(self.out, "last"), weights=False, run=True)
        if odd := self.differs(ckpt.config):
            raise UserError(
                f"{self.out} was trained with another {odd}: move it away, or give another --runs folder"
            )
        return ckpt.progress["step"] >= self.wanted["max_steps"]

    @property
    def wanted(self) -> dict[str, Any]:
        return vars(TrainConfig.read(list(self.arguments)))

    def differs(self, config: dict[str, Any], rows: dict[str, Row] | None = None) -> str:
        """The first key in which a configuration is not what the table asks for, with both values; or "".

        What another run gave it counts by the hash of that run's weights, as far as it is known: from its
        folder or its row among `rows`; else by its name.
        """
        want = self.wanted

        def value(c: dict[str, Any], key: str) -> Any:
            return Path(c[key]).name if key in ("teacher", "init_from") else c[key]

        # a run may have taken whatever "auto" was where it was begun
        asked = [k for k in want if k in config and k not in RESUMABLE and want[k] != "auto"]
        odd = [k for k in asked if value(config, k) != value(want, k)]
        if odd:
            return f"{odd[0]} ({config[odd[0]]!r}, not {want[odd[0]]!r})"
        for key, recorded in (("teacher", "teacher_weights"), ("init_from", "init_weights")):
            had, now = config.get(recorded), weights_of(want[key], rows or {})
            if had and now and had != now:
                return f"{key} (one with the weights {had[:12]}, {want[key]} now has {now[:12]})"
        had, now = config.get("data_sha256"), data_of(want)
        if had and now and had != now:
            return f"data (text {had[:12]}, now {now[:12]})"
        return ""


def weights_of(run: str, rows: dict[str, Row]) -> str | None:
    """SHA-256 of the weights that start or teach others from `run`.

    Of its folder, or of its row where the folder is gone; None if neither is there.
    """
    if not run:
        return None
    try:
        found = checkpoint.find(run)
        return _digest(found, (found / "model.safetensors").stat().st_mtime_ns)
    except OSError:
        return rows.get(Path(run).name, {}).get("weights_sha256")


@cache
def _digest(path: Path, changed: int) -> str:
    return checkpoint.weights_digest(path)  # once for all the runs that start from these weights


def data_of(config: dict[str, Any], folder: str = "") -> str | None:
    """SHA-256 of the training text in `folder`, or else that a configuration would be trained on.

    None as long as it is not prepared.
    """
    try:
        asked = (config["dataset"], config["tokenizer"], config["source"])
        prepared = Path(folder) if folder else folder_of(*asked, DATA)
        return open_tokens(prepared / "train.bin").info["sha256"]
    except (OSError, ValueError, KeyError):
        return None


def split(text: str) -> list[str]:
    """The words of `text`, as a shell reads them. UserError naming it if a quotation has no end."""
    try:
        return shlex.split(text)
    except ValueError as e:
        raise UserError(f"{text!r} cannot be split into words: {e}") from None


def per_run_table(c: TableConfig) -> Path:
    """Name, without ending, of the table of all runs."""
    return Path(c.results) / f"{c.name}.runs"


# -----------------------------------------------------------------------------
# What is done already


def evaluated(runs: list[Run], c: TableConfig) -> set[str]:
    """Names of the runs that need no folder any more.

    An earlier table of the same settings has their row, and no run that is still to do starts from them.
    """
    summary, per_run = Path(c.results) / f"{c.name}.json", beside(per_run_table(c), ".json")
    if not (summary.is_file() and per_run.is_file()):
        return set()
    with foreign(summary, OURS):
        if read_json(summary)["settings"]["table"]["evaluate"] != c.evaluate:
            return set()
    with foreign(per_run, OURS):
        rows = {r["name"]: r for r in read_json(per_run)["rows"]}
        done = {r.out.name for r in runs if has_row(r, c, rows)}
        while needed := still_needed(runs, done):
            done -= needed
        return done


def has_row(run: Run, c: TableConfig, rows: dict[str, Row]) -> bool:
    """Whether `rows` say of a run, which has no folder any more, all that there is to say."""
    row = rows.get(run.out.name, {})
    if run.started or "training" not in row or "problem" in row or run.differs(row["training"], rows):
        return False
    texts = samples_file(per_run_table(c), run.out.name)
    return row["training"]["max_steps"] == run.wanted["max_steps"] and texts.is_file()


def still_needed(runs: list[Run], done: set[str]) -> set[str]:
    """Those of `done` that a run which is still to do starts from: they need their folder after all."""
    todo = [r for r in runs if r.out.name not in done and not r.finished]
    used = {a.partition("=")[2] for r in todo for a in r.arguments}
    return {r.out.name for r in runs if r.out.name in done and str(r.out) in used}


# -----------------------------------------------------------------------------
# Training


class Stopped(Exception):
    """A signal, its number in args, ended the trainings."""


class Trainings:
    """The processes that train now, and the signal that stopped them."""

    def __init__(self) -> None:
        self.running: set[subprocess.Popen] = set()
        self.stopped = 0

    def run(self, command: list[str], environment: dict[str, str]) -> int:
        """The exit code of `command`."""
        process = subprocess.Popen(command, env=environment)
        self.running.add(process)
        if self.stopped:  # by a signal that came just before
            process.terminate()
        code = process.wait()
        self.running.discard(process)
        return code

    def stop(self, number: int, frame: FrameType | None) -> None:
        """Answers a signal: every training saves and ends."""
        self.stopped = self.stopped or number
        for process in list(self.running):
            process.terminate()


@contextmanager
def stopping(trainings: Trainings) -> Iterator[Trainings]:
    """Within it a signal to stop goes to the trainings, too: SIGTERM reaches this process alone."""
    before = on_stop(trainings.stop)
    try:
        yield trainings
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def train_all(runs: list[Run], c: TableConfig) -> None:
    """The runs that are not finished, `jobs` at a time.

    ChildProcessError naming those that failed, once the others are done; Stopped at a signal.
    """
    todo = [r for r in runs if not r.finished]
    failed: list[str] = []
    threads = max(1, (os.cpu_count() or 1) // c.jobs)
    environment = os.environ | ({"OMP_NUM_THREADS": str(threads)} if c.jobs > 1 else {})

    def one(run: Run) -> None:
        if trainings.stopped:
            return
        resume = ["--resume"] if run.started else []
        command = [sys.executable, "train.py", *run.arguments, *resume, "--log_interval=50"]
        print(f"{run.out.name} ({todo.index(run) + 1} of {len(todo)} to do)", flush=True)
        code = trainings.run(command, environment)
        by_signal = -code if code < 0 else code - 128
        if by_signal in (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
            trainings.stopped = trainings.stopped or by_signal
        elif code:
            failed.append(run.out.name)

    with stopping(Trainings()) as trainings:
        if c.jobs == 1:
            for run in todo:
                one(run)
        else:
            with ThreadPoolExecutor(c.jobs) as pool:
                list(pool.map(one, todo))
    if trainings.stopped:
        raise Stopped(trainings.stopped)
    if failed:
        names = ", ".join(failed)
        raise ChildProcessError(f"{names} failed, see the messages above; the other runs are kept")


# -----------------------------------------------------------------------------
# The table


def check(c: TableConfig) -> list[Run]:
    """The table's runs. UserError for what cannot work, of any row."""
    for key, least in (("jobs", 1), ("halves", 2)):
        if getattr(c, key) < least:
            raise UserError(f"{key} = {getattr(c, key)}: must be at least {least}")
    if not c.rows or not c.seeds:
        raise UserError(
            "rows and seeds: a table needs at least one of each; give the file that has them first: "
            "table.py config/tables/heads.py config/tables/grammar.py"
        )
    runs = [Run.make(row, seed, c) for seed in c.seeds for row in c.rows]
    if len({r.out for r in runs}) < len(runs):
        raise UserError("rows or seeds hold one twice: each row and each seed is to be there once")
    for run in runs:
        TrainConfig.read(list(run.arguments))
    asked = eval_diversity.read_arguments([*(str(r.out) for r in runs), *split(c.evaluate)])
    blocks = {run.wanted["block_size"]: run for run in runs}
    if len(blocks) > 1:
        each = "; ".join(f"{run.out.name} has block_size = {block}" for block, run in blocks.items())
        raise UserError(f"{each}: contexts of different length cannot stand in one table")
    per_run = per_run_table(c)
    for path in (
        beside(per_run, ".json"),
        samples_file(per_run, "human"),
        Path(c.results) / f"{c.name}.json",
    ):
        check_writable(path)
    check_kept(c, eval_diversity.settings_of(asked, *blocks), data_of(runs[0].wanted, asked.data))
    return runs


def check_kept(c: TableConfig, settings: Settings, text: str | None) -> None:
    """UserError if the results hold rows of other settings, or of another training `text` (SHA-256).

    As far as they are known before the data are prepared: found now, not after the trainings.
    """
    path = beside(per_run_table(c), ".json")
    if not path.is_file():
        return
    with foreign(path, OURS):
        had = dict(read_json(path)["settings"])
    odd = other_settings(had, {k: v for k, v in vars(settings).items() if v != ""})
    if text and had.get("train") != text:
        odd.append(f"training text {str(had.get('train'))[:12]}, now {text[:12]}")
    if odd:
        raise UserError(
            f"{path} holds rows of other settings ({'; '.join(odd)}): "
            "they cannot stand in one table; use those settings, or another --results"
        )


def train_missing(runs: list[Run], done: set[str], c: TableConfig) -> list[Run]:
    """Trains what is not done, and returns it. Stopped at a signal."""
    if c.partial:
        finished = [r for r in runs if r.out.name not in done and r.finished]
        if not finished and not done:
            raise UserError("partial = True: no run of this table is finished")
        return finished
    first = split(c.rows[0])[0]
    # others may have it as their teacher, or start from it
    train_all([r for r in runs if r.out.name not in done and r.row == first], c)
    done = done & evaluated(runs, c)  # which, trained anew, may have become another
    todo = [r for r in runs if r.out.name not in done]
    train_all([r for r in todo if r.row != first], c)
    return todo


def summarise(c: TableConfig) -> None:
    """Writes the summary and its figures, and shows them."""
    out, per_run = Path(c.results) / c.name, per_run_table(c)
    asked = {split(row)[0]: {seed: Run.make(row, seed, c).out.name for seed in c.seeds} for row in c.rows}
    with locked(lock_of(out)):
        print("", write_summary(out, per_run, asked, vars(c), c.halves), sep="\n")
        drawn = [str(figure) for figure in figures.draw(out)]
    print("", *drawn or [f"no figures: {per_run}.json has no learning curves"], sep="\n")


def main(argv: list[str]) -> int:
    if wants_help(argv):
        print(__doc__, help_text(TableConfig), sep="\n")
        return 0
    c = configure(TableConfig, argv)
    runs, per_run = check(c), per_run_table(c)
    done = evaluated(runs, c)
    if done:
        print(
            f"{len(done)} of {len(runs)} runs are kept from {per_run}.json, their folders are not there; "
            "--results=DIR starts anew",
            flush=True,
        )
    try:
        todo = train_missing(runs, done, c)
    except Stopped as e:
        print("stopped; what is trained is saved: run it again to go on", file=sys.stderr)
        return 128 + e.args[0]
    per_run.parent.mkdir(parents=True, exist_ok=True)
    code = 0
    if todo:
        folders = [str(r.out) for r in todo]
        code = eval_diversity.main([*folders, *split(c.evaluate), f"--out={per_run}"])
    if code in (0, 1):  # 1: some models could not be evaluated, see their rows
        summarise(c)
    return code


if __name__ == "__main__":
    cli(main)()
