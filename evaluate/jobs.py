"""The trainings that a table or a search is made of: what each one is, and whether it is done."""

import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

from common.config import completed, read
from common.errors import UserError
from common.log import entries
from common.places import called
from config.defaults import TrainConfig
from data.prepared import DATA, folder_of, prepared
from data.tokenizers import tokenizer_name
from data.tokens import open_tokens
from evaluate.settings import TableConfig
from evaluate.store import Row
from heads import head_changed
from training import checkpoint
from training.run import RESUMABLE
from training.task import lab_of, settled

PLACEHOLDERS = ("{runs}", "{overlay}", "{seed}", "{first}", "{gain}")


class Ended(NamedTuple):
    """What a training that is over left."""

    config: dict[str, Any]
    nll: float | None  # that judged the run, in nats a token; None: it diverged
    why: str = ""  # it diverged


@dataclass(frozen=True)
class Run:
    """One training: `arguments` of train.py.

    In a row's flags {runs}, {overlay} and {seed} are the run's, {first} is the first row's checkpoint (its
    `last`) and {gain} the first row's gain: --teacher={first}.
    """

    row: str
    overlay: str
    seed: int
    out: Path
    arguments: tuple[str, ...]

    @classmethod
    def make(
        cls,
        row: str,
        seed: int,
        c: TableConfig,
        first: "Run | None" = None,
        point_flags: Sequence[str] = (),
        end: str = "",
        **more: Any,
    ) -> Self:
        """The run of a row: its config file, the overlay, the table's flags, its own, and those of the point
        that a search has found.

        `end` of its name; `more`: fields of a subclass.
        """
        name, *flags = words_of(row)
        out = Path(c.runs) / f"{name}-{c.overlay}-{seed}{end}"
        filled = {"runs": Path(c.runs), "overlay": c.overlay, "seed": seed}
        if first is not None and uses_first(row):
            filled |= {"first": first.out / "last", "gain": first.wanted["gain"]}
        flags = [*split(c.flags), *flags]
        for key, value in filled.items():
            flags = [f.replace(f"{{{key}}}", str(value)) for f in flags]
        if left := re.search(r"\{\w+\}", " ".join(flags)):
            raise UserError(
                f"{left[0]} in rows ({row!r}) or flags is not filled in: {', '.join(PLACEHOLDERS)} are, "
                "the last two in the flags of rows below the first"
            )
        configs = (f"config/{c.config or name}.py", f"config/{c.overlay}.py")
        itself = (f"--row={name}",) * bool(c.config) + (
            f"--seed={seed}",
            f"--name={out.name}",
            f"--out_dir={out}",
        )
        return cls(name, c.overlay, seed, out, (*configs, *flags, *point_flags, *itself), **more)

    @property
    def started(self) -> bool:
        return checkpoint.begun(self.out)

    @property
    def fields(self) -> Row:
        """What a row of it says of its place in the table."""
        return {"row": self.row, "overlay": self.overlay, "seed": self.seed}

    @property
    def diverged(self) -> str:
        """Why its training ended before its end; "" if it did not. What diverged is over: it would again."""
        ended = self.ended()
        return ended.why if ended and ended.nll is None else ""

    @property
    def finished(self) -> bool:
        """Whether it is trained to its end. UserError if it is not the run that is asked for."""
        ended = self.ended()
        return ended is not None and ended.nll is not None

    def ended(self) -> Ended | None:
        """What it left, if it is over: trained to its end and evaluated there, or diverged.

        UserError if its configuration, data, weights or number of steps are not those asked for.
        """
        last = (entries(self.out) or [{}])[-1]
        if "diverged" in last and not self.differs(last["config"]):  # there may be no checkpoint of it
            return Ended(last["config"], None, str(last["diverged"]))
        if not self.started:
            return None
        ckpt = checkpoint.load(checkpoint.find(self.out, "last"), weights=False, run=True, classifier=True)
        if difference := self.differs(ckpt.config):
            raise UserError(f"{self.out} was trained with another {difference}: {REMEDY}")
        step, steps = ckpt.progress["step"], self.wanted["max_steps"]
        if step > steps:
            raise UserError(f"{self.out} was trained for {step} steps, not {steps}: {REMEDY}")
        if step < steps or ckpt.progress["val_nll"] is None:  # a signal came before its evaluation
            return None
        return Ended(ckpt.config, ckpt.progress["best_val_nll"])

    @cached_property
    def wanted(self) -> dict[str, Any]:
        return vars(settled(read(TrainConfig, list(self.arguments))))

    def differs(self, config: dict[str, Any], rows: dict[str, Row] | None = None) -> str:
        """The first key in which a configuration is not what the table asks for, with both values; or "".

        What another run gave it counts by the hash of that run's weights, as far as it is known: from its
        folder or its row among `rows`; else by its name.
        """
        want, config = self.wanted, completed(TrainConfig, config)
        # a run may have taken whatever "auto" was where it was begun
        keys = [k for k in want if k not in RESUMABLE and want[k] != "auto"]
        if different := [k for k in keys if portable(config, k) != portable(want, k)]:
            return f"{different[0]} ({config[different[0]]!r}, not {want[different[0]]!r})"
        for key, recorded in (("teacher", "teacher_weights"), ("init_from", "init_weights")):
            before, now = config.get(recorded), weights_of(want[key], rows or {})
            if before and now and before != now:
                return f"{key} (one with the weights {before[:12]}, {want[key]} now has {now[:12]})"
        before, now = config.get("data_sha256"), data_of(want)
        if before and now and before != now:
            return f"data (text {before[:12]}, now {now[:12]})"
        return ""


REMEDY = "move it away, or give another --runs folder"


def note_changed_heads(rows: Iterable[Row]) -> None:
    """Names the runs whose `rows` are kept though the code of their head is another by now. What changed may
    be a comment, so nothing is trained anew."""
    kept: dict[str, list[str]] = {}
    for row in rows:
        if changed := head_changed(row.get("training", {})):
            kept.setdefault(changed, []).append(row["name"])
    for changed, names in kept.items():
        note = f"note: kept as trained: {', '.join(sorted(names))}{changed}"
        print(f"{note}; other --runs and --results train anew", file=sys.stderr)


def portable(config: dict[str, Any], key: str) -> Any:
    """A value of a configuration; another run and a tokenizer.json are there by their names alone."""
    if key == "tokenizer":
        return tokenizer_name(config[key])
    return run_folder(config[key]).name if key in ("teacher", "init_from") else config[key]


def run_folder(path: str) -> Path:
    """The folder of the run that a teacher's path, or that of weights to start from, means."""
    folder = Path(path)
    return folder.parent if folder.name in ("last", "best") else folder


def weights_of(run: str, rows: dict[str, Row]) -> str | None:
    """SHA-256 of the weights that start or teach others from `run`.

    From its folder or, where the folder is gone, from its row; None if neither is there.
    """
    if not run:
        return None
    try:
        weights = checkpoint.find(run)
        return _digest(weights, (weights / "model.safetensors").stat().st_mtime_ns)
    except OSError:
        return rows.get(run_folder(run).name, {}).get("weights_sha256")


@cache
def _digest(path: Path, changed: int) -> str:
    return checkpoint.weights_digest(path)  # once for all the runs that start from these weights


def data_of(config: dict[str, Any], folder: str = "") -> str | None:
    """SHA-256 of the training text in `folder`, or else that a configuration would be trained on.

    None as long as it is not prepared.
    """
    try:
        corpus = (config["dataset"], config["tokenizer"], config["source"])
        path = Path(folder) if folder else folder_of(*corpus, DATA)
        return open_tokens(path / "train.bin").info["sha256"]
    except (OSError, ValueError, KeyError):
        return None


def prepare_data(runs: Sequence[Run]) -> None:
    """Prepares what `runs` are trained on. UserError for what cannot be: once, and not run by run."""
    for dataset, tokenizer, source in dict.fromkeys(
        (w["dataset"], w["tokenizer"], w["source"]) for w in (run.wanted for run in runs)
    ):
        if lab_of(dataset) is None:  # a lab's data have no tokens to prepare: its measure has opened them
            prepared(dataset, tokenizer, source)


# -----------------------------------------------------------------------------
# Rows and command lines


def split(text: str) -> list[str]:
    """The words of `text`, as a shell reads them. UserError naming it if a quotation has no end."""
    try:
        return shlex.split(text)
    except ValueError as e:
        raise UserError(f"{text!r} cannot be split into words: {e}") from None


def words_of(row: str) -> list[str]:
    """The config file's name and the flags of a row. UserError if there is no name."""
    words = split(row)
    if not words:
        raise UserError(f"rows = [{row!r}]: a row is the name of a config file, with flags if it needs some")
    return words


def uses_first(row: str) -> bool:
    return "{first}" in row or "{gain}" in row


def used_by(run: Run) -> set[Path]:
    """The folders of the runs that `run` starts from, or that teach it."""
    wanted = run.wanted
    taught = wanted["teacher"] if wanted["labels"] != "true" else ""
    return {run_folder(name) for name in (taught, wanted["init_from"]) if name}


def show_commands(first: Sequence[Run], rest: Sequence[Run]) -> None:
    """One line a run, for whatever starts them; those that others need come `first`."""
    if first and rest:
        print(
            f"# the first {len(first)} lines must be finished before the rest is started: "
            "it starts from them, or they are its teachers",
            file=sys.stderr,
        )
    for run in (*first, *rest):
        resume = ["--resume"] if run.started else []
        print(called(shlex.join(["python", "train.py", *run.arguments, *resume])))
