"""The trainings that a table or a search asks for: what each one is, and what is left of it."""

import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from common.config import read, with_defaults
from common.errors import UserError, checking
from common.log import entries
from common.places import as_installed_command
from config.defaults import TrainConfig
from data.open import DATA, folder_of, prepared
from data.tokenizers import tokenizer_name
from data.tokens import read_made
from heads import head_changed
from tables.measure import training_of
from tables.settings import TableConfig
from tables.store import Row
from training import checkpoint
from training.run import RESUMABLE, Run, difference
from training.text import lab_of, with_task_defaults

ByName = dict[str, Row]  # the rows of a measure, or the trials of a search


@dataclass(frozen=True)
class Job:
    """One training: `arguments` of train.py.

    In a row's flags {runs}, {overlay} and {seed} are the job's, {first} is the first row's checkpoint (its
    `last`) and {gain} the first row's gain: --teacher={first}.
    """

    row: str
    overlay: str
    seed: int
    out: Path
    arguments: tuple[str, ...]
    trial: int = 0  # of a search, which trains at this point
    point: dict[str, float] = field(default_factory=dict)

    @classmethod
    def make(
        cls,
        row: str,
        seed: int,
        c: TableConfig,
        first: "Job | None" = None,
        point_flags: Sequence[str] = (),
        end: str = "",
        **trial: Any,
    ) -> "Job":
        """The job of a row: its config file, the overlay, the table's flags, its own, and those of the point
        that a search has found. `end` of its name. UserError for a {word} that nothing fills in."""
        name, *own = shlex.split(row)
        out = Path(c.runs) / f"{name}-{c.overlay}-{seed}{end}"
        filled = {"runs": Path(c.runs), "overlay": c.overlay, "seed": seed}
        if first is not None and uses_first(row):
            filled |= {"first": first.out / "last", "gain": first.wanted["gain"]}
        flags = [*shlex.split(c.flags), *own]
        if taken := {flag.partition("=")[0] for flag in flags} & {"--seed", "--name", "--out_dir", "--row"}:
            raise UserError(f"{min(taken)} in rows ({row!r}) or flags: the table gives it to each run")
        for key, value in filled.items():
            flags = [flag.replace(f"{{{key}}}", str(value)) for flag in flags]
        if left := re.search(r"\{\w+\}", " ".join(flags)):
            raise UserError(f"{left[0]} in rows ({row!r}) or flags is not filled in")
        files = [f"config/{c.config or name}.py", f"config/{c.overlay}.py"]
        itself = [f"--row={name}"] if c.config else []
        itself += [f"--seed={seed}", f"--name={out.name}", f"--out_dir={out}"]
        return cls(name, c.overlay, seed, out, (*files, *flags, *point_flags, *itself), **trial)

    @property
    def fields(self) -> Row:
        """What a row of it says of its place in the table."""
        return {"row": self.row, "overlay": self.overlay, "seed": self.seed}

    @property
    def started(self) -> bool:
        return checkpoint.holds_run(self.out)

    @cached_property
    def wanted(self) -> dict[str, Any]:
        return vars(with_task_defaults(read(TrainConfig, list(self.arguments))))

    def result(self) -> Row | None:
        """What is left of it if it is over; None if it is still to be trained.

        Its `training`, and the `nll` (nats a token) that judged it or, if it diverged, the `problem`: it
        would again. UserError for a folder with another training.
        """
        last = (entries(self.out) or [{}])[-1]
        if "diverged" in last and not self.differs(last["config"]):  # there may be no checkpoint of it
            problem = f"its training diverged: {last['diverged']}"
            return {"training": training_of(last["config"]), "problem": problem}
        if not self.started:
            return None
        ckpt = Run(self.out, "last")
        if found := self.differs(ckpt.record):
            raise UserError(f"{self.out} was trained with another {found}: move it away")
        if ckpt.progress.step < self.wanted["max_steps"] or not ckpt.progress.val:
            return None  # a signal may have come before its last evaluation
        return {"training": training_of(ckpt.record), "nll": ckpt.progress.best["nll"]}

    def differs(self, training: dict[str, Any], rows: ByName | None = None) -> str:
        """The first key in which a recorded configuration is not what is asked for, with both values; or "".

        What another run gave it counts by the hash of that run's weights, as far as it is known: from its
        folder or its row among `rows`; else by its name.
        """
        wanted, training = self.wanted, with_defaults(TrainConfig, training)
        # a run may have taken whatever "auto" was where it was begun
        but = RESUMABLE - {"max_steps"} | {key for key, value in wanted.items() if value == "auto"}
        now = {
            "teacher_weights": weights_of(wanted["teacher"], rows or {}),
            "init_weights": weights_of(wanted["init_from"], rows or {}),
            "data_sha256": data_of(wanted),
        }
        known = {key: digest for key, digest in now.items() if digest and training.get(key)}
        return difference(portable(training), portable(wanted), but) or difference(training, known)


# -----------------------------------------------------------------------------
# Rows


def name_of(row: str) -> str:
    """The name of a row, which its flags follow."""
    name, *_ = shlex.split(row)
    return name


def uses_first(row: str) -> bool:
    return "{first}" in row or "{gain}" in row


def used_by(job: Job) -> set[Path]:
    """The folders of the runs that `job` starts from, or that teach it."""
    wanted = job.wanted
    taught = wanted["teacher"] if wanted["labels"] != "true" else ""
    return {run_folder(name) for name in (taught, wanted["init_from"]) if name}


def sources_first(jobs: Sequence[Job]) -> tuple[list[Job], list[Job]]:
    """(those that others start from or that teach them, the others)."""
    used = {folder for job in jobs for folder in used_by(job)}
    return [j for j in jobs if j.out in used], [j for j in jobs if j.out not in used]


def show_commands(jobs: Sequence[Job]) -> None:
    """One line a job, for whatever starts them; those that others need come first."""
    first, rest = sources_first(jobs)
    if first and rest:
        print(f"# finish the first {len(first)} lines before the rest, which needs them", file=sys.stderr)
    for job in (*first, *rest):
        resume = ["--resume"] if job.started else []
        print(as_installed_command(shlex.join(["python", "train.py", *job.arguments, *resume])))


def note_changed_heads(rows: Iterable[Row]) -> None:
    """Names the runs whose `rows` are kept though the code of their head is another by now. What changed may
    be a comment, so nothing is trained anew."""
    kept: dict[str, list[str]] = {}
    for row in rows:
        with checking():  # of a run of today's heads
            if changed := head_changed(row.get("training", {})):
                kept.setdefault(changed, []).append(row["name"])
    for changed, names in kept.items():
        print(f"note: kept as trained: {', '.join(sorted(names))}: {changed}", file=sys.stderr)


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


def weights_of(run: str, rows: ByName) -> str | None:
    """SHA-256 of the weights that start or teach others from `run`.

    From its folder or, where the folder is gone, from its row; None if neither is there.
    """
    if not run:
        return None
    try:
        weights = checkpoint.find_checkpoint(run)
        return _digest(weights, (weights / "model.safetensors").stat().st_mtime_ns)
    except OSError:
        return rows.get(run_folder(run).name, {}).get("weights_sha256")


@cache
def _digest(path: Path, changed: int) -> str:
    return checkpoint.weights_digest(path)  # once for all the jobs that start from these weights


def data_of(config: dict[str, Any], folder: str = "") -> str | None:
    """SHA-256 of the training text in `folder`, or else that a configuration would be trained on.

    None as long as it is not prepared.
    """
    try:
        corpus = (config["dataset"], config["tokenizer"], config["source"])
        path = Path(folder) if folder else folder_of(*corpus, DATA)
        return read_made(path)["splits"]["train"]["sha256"]
    except (OSError, ValueError, KeyError):
        return None


def prepare_data(jobs: Sequence[Job]) -> None:
    """Prepares what `jobs` are trained on. UserError for what cannot be: once, and not job by job."""
    wanted = [job.wanted for job in jobs if not job.wanted["data"]]
    corpora = [(w["dataset"], w["tokenizer"], w["source"]) for w in wanted]
    for dataset, tokenizer, source in dict.fromkeys(corpora):
        if lab_of(dataset) is None:  # a lab's data have no tokens to prepare: its measure has opened them
            prepared(dataset, tokenizer, source)
