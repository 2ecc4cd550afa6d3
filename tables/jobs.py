"""The trainings that a table or a search asks for: what each one is, and what is left of it."""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from common.config import read, with_defaults
from common.errors import UserError
from common.log import entries
from common.places import as_installed_command
from config.defaults import TrainConfig
from data.open import DATA, folder_of, prepared
from data.tokenizers import tokenizer_name
from data.tokens import read_made
from tables.measure import training_of
from tables.names import check_apart
from tables.settings import TableConfig
from tables.store import Row
from training.checkpoint import holds_run
from training.run import RESUMABLE, Run, difference
from training.text import lab_of, with_task_defaults

State = Literal["new", "begun", "trained", "diverged", "kept"]
OVER = ("trained", "diverged")


@dataclass(frozen=True)
class Job:
    """One training: its folder, the arguments of train.py, and what a row says of its place in the table."""

    out: Path
    arguments: tuple[str, ...]
    fields: Row = field(default_factory=dict)

    @classmethod
    def make(
        cls,
        c: TableConfig,
        row: str,
        seed: int,
        first: "Job | None" = None,
        flags: Sequence[str] = (),
        end: str = "",
        **fields: Any,
    ) -> "Job":
        """The job of a row: its config file, the overlay, the table's flags, its own, then `flags`. Its name
        has this `end`.

        In the row's flags {runs}, {overlay} and {seed} are the job's, {first} is the first row's checkpoint
        (its `last`) and {gain} the first row's gain: --teacher={first}. UserError for another {word}.
        """
        name, *own = shlex.split(row)
        out = Path(c.runs) / f"{name}-{c.overlay}-{seed}{end}"
        values = {"runs": Path(c.runs), "overlay": c.overlay, "seed": seed}
        if first is not None:
            values |= {"first": first.out / "last", "gain": first.wanted["gain"]}

        def fill(word: re.Match) -> str:
            if word[1] not in values:
                raise UserError(f"{word[0]} in rows ({row!r}) or flags is not filled in")
            return str(values[word[1]])

        own = [re.sub(r"\{(\w+)\}", fill, flag) for flag in (*shlex.split(c.flags), *own)]
        if taken := {flag.partition("=")[0] for flag in own} & {"--seed", "--name", "--out_dir", "--row"}:
            raise UserError(f"{min(taken)} in rows ({row!r}) or flags: the table gives it to each run")
        files = [f"config/{c.config or name}.py", f"config/{c.overlay}.py"]
        itself = [f"--row={name}"] if c.config else []
        itself += [f"--seed={seed}", f"--name={out.name}", f"--out_dir={out}"]
        fields = {"row": name, "overlay": c.overlay, "seed": seed, **fields}
        return cls(out, (*files, *own, *flags, *itself), fields)

    @property
    def name(self) -> str:
        return self.out.name

    @cached_property
    def wanted(self) -> dict[str, Any]:
        """The configuration that is asked for. UserError for one that cannot be."""
        wanted = vars(with_task_defaults(read(TrainConfig, list(self.arguments))))
        if wanted["data"]:  # a run records the folder's own; one that is not there yet has none
            with suppress(OSError, UserError):
                made = read_made(Path(wanted["data"]))
                wanted |= {"dataset": made.get("corpus", wanted["dataset"]), "tokenizer": made["tokenizer"]}
        return wanted

    @property
    def sources(self) -> set[Path]:
        """The folders of the runs that it starts from or learns from."""
        taught = self.wanted["teacher"] if self.wanted["labels"] != "true" else ""
        return {run_folder(path) for path in (taught, self.wanted["init_from"]) if path}

    def differs(self, training: dict[str, Any], rows: Mapping[str, Row] = {}) -> str:
        """The first key in which a recorded configuration is not what is asked for, with both values; or "".

        What another run gave it counts by the hash of that run's weights, as far as it is known: from its
        folder or its row among `rows`; else by its name.
        """
        wanted, training = self.wanted, with_defaults(TrainConfig, training)
        # a run may have taken whatever "auto" was where it was begun
        but = RESUMABLE - {"max_steps"} | {key for key, value in wanted.items() if value == "auto"}
        now = {
            "teacher_weights": weights_of(wanted["teacher"], rows),
            "init_weights": weights_of(wanted["init_from"], rows),
            "data_sha256": data_of(wanted),
        }
        known = {key: digest for key, digest in now.items() if digest and training.get(key)}
        return difference(portable(training), portable(wanted), but) or difference(training, known)


def state(job: Job, rows: Mapping[str, Row] = {}) -> tuple[State, Row]:
    """What is left of a job, and what a row says of it. Asking changes nothing.

    new       nothing
    begun     a checkpoint, from which --resume goes on
    trained   the last checkpoint: its `training`, and the `nll` (nats a token) that judged it
    diverged  a log that ends so: its `training`, and the `problem`. It would diverge again
    kept      no folder, but its row among `rows`, of the whole training

    UserError for a folder with another training.
    """
    last = (entries(job.out) or [{}])[-1]
    if "diverged" in last and not job.differs(last["config"]):  # there may be no checkpoint of it
        problem = f"its training diverged: {last['diverged']}"
        return "diverged", {"training": training_of(last["config"]), "problem": problem}
    if holds_run(job.out):
        run = Run(job.out, "last")
        if found := job.differs(run.record):
            raise UserError(f"{job.out} was trained with another {found}: move it away")
        if run.progress.step < job.wanted["max_steps"] or not run.progress.val:
            return "begun", {}  # a signal may have come before its last evaluation
        return "trained", {"training": training_of(run.record), "nll": run.progress.best["nll"]}
    row = rows.get(job.name, {})
    if "training" not in row or "problem" in row or job.differs(row["training"], rows):
        return "new", {}
    steps = job.wanted["max_steps"]
    return ("kept", row) if row.get("step", steps) == steps else ("new", {})


# -----------------------------------------------------------------------------
# Rows, and what is to do


def name_of(row: str) -> str:
    """The name of a row, which its flags follow."""
    return shlex.split(row)[0]


def jobs_of(c: TableConfig, points: Mapping[str, Sequence[str]] = {}) -> list[Job]:
    """Each row with each seed, and the flags of its point. UserError for one that cannot be, or is there
    twice."""
    jobs: list[Job] = []
    for seed in c.seeds:
        first = None
        for row in c.rows:
            jobs.append(Job.make(c, row, seed, first, points.get(name_of(row), ())))
            first = first or jobs[-1]
    check_apart(job.name for job in jobs)
    for job in jobs:
        job.wanted
    return jobs


def to_train(jobs: Sequence[Job], rows: Mapping[str, Row]) -> list[Job]:
    """The jobs of which nothing whole is left, and the kept ones whose folder these need."""
    left = [(job, *state(job, rows)) for job in jobs]
    lost = without_source(left)
    todo = [job for job, what, _ in left if what in ("new", "begun") and job.out not in lost]
    kept = [job for job, what, _ in left if what == "kept"]
    while needed := [k for k in kept if k not in todo and any(k.out in job.sources for job in todo)]:
        todo += needed
    return [job for job in jobs if job in todo]


def without_source(left: Sequence[tuple[Job, State, Row]]) -> dict[Path, Row]:
    """What a row says of each job that diverged, or needs a run that did. `left`: each job's `state`."""
    lost: dict[Path, Row] = {}
    for job, what, row in left:  # a source stands before what needs it
        if what == "diverged":
            lost[job.out] = row
        elif what in ("new", "begun") and (needs := sorted(path.name for path in job.sources & lost.keys())):
            problem = f"the training of {needs[0]} diverged"
            lost[job.out] = {"training": training_of(job.wanted), "problem": problem}
    return lost


def ready(jobs: Sequence[Job]) -> list[Job]:
    """The jobs that need none of the others."""
    folders = {job.out for job in jobs}
    return [job for job in jobs if not job.sources & folders] or [*jobs]


def show_commands(jobs: Sequence[Job]) -> None:
    """A line for each training that can start now, for whatever starts it."""
    for job in ready(jobs):
        resume = ["--resume"] if state(job)[0] == "begun" else []
        print(as_installed_command(shlex.join(["python", "train.py", *job.arguments, *resume])))


# -----------------------------------------------------------------------------
# What a training came from


def portable(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration in which another run and a tokenizer.json are there by their names alone."""
    names = {key: run_folder(config[key]).name for key in ("teacher", "init_from")}
    return config | names | {"tokenizer": tokenizer_name(config["tokenizer"])}


def run_folder(path: str) -> Path:
    """The folder of the run that a teacher's path, or that of weights to start from, means."""
    folder = Path(path)
    return folder.parent if folder.name in ("last", "best") else folder


def weights_of(run: str, rows: Mapping[str, Row]) -> str | None:
    """SHA-256 of the weights of `run`: from its folder or, where that is gone or no run of ours, from its
    row; None if neither is there."""
    try:
        return Run(run).weights_sha256 if run else None
    except (OSError, UserError):
        row = rows.get(run_folder(run).name, {})
        which = ["last" if Path(path).name == "last" else "best" for path in (row.get("checkpoint", ""), run)]
        return row.get("weights_sha256") if which[0] == which[1] else None


def data_of(config: dict[str, Any], folder: str = "") -> str | None:
    """SHA-256 of the training text in `folder`, or else that a configuration would be trained on.

    None as long as it is not prepared.
    """
    try:
        corpus = (config["dataset"], config["tokenizer"], config["source"])
        path = Path(folder or config["data"] or folder_of(*corpus, DATA))
        return read_made(path)["splits"]["train"]["sha256"]
    except (OSError, ValueError, KeyError):
        return None


def prepare_data(jobs: Iterable[Job]) -> None:
    """Prepares what `jobs` are trained on. UserError for what cannot be: once, and not job by job."""
    wanted = [job.wanted for job in jobs if not job.wanted["data"]]
    for corpus in dict.fromkeys((w["dataset"], w["tokenizer"], w["source"]) for w in wanted):
        if lab_of(corpus[0]) is None:  # a lab's data have no tokens to prepare: its measure has opened them
            prepared(*corpus)
