"""A checkpoint: a folder with the weights as safetensors, the configuration and the progress as JSON and, to
resume, the optimizer's state.

Written aside, then renamed: a folder of the final name is always whole. Its manifest.json has the SHA-256 of
each file. Nothing is pickled; the optimizer's state loads with weights_only=True. training/run.py reads them.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import filelock
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from common.config import Natural, checked
from common.errors import UserError, nearest_file, reading
from common.files import locked, remove_leftovers
from common.manifest import sha256_of, write_manifest
from config.defaults import TrainConfig
from model import LanguageModel


@dataclass
class Progress:
    """How far a run has come. Scores are by their names: "nll" in nats a token; a classifier's first is its
    "error" in per cent."""

    step: int = 0
    tokens: int = 0
    val: dict[str, float] = field(default_factory=dict)  # of the validation split at this step; {}: not known
    criterion: dict[str, float] = field(default_factory=dict)  # `val` on the windows of every evaluation
    best: dict[str, float] = field(default_factory=dict)  # the least `criterion` so far

    @classmethod
    def read(cls, path: Path) -> "Progress":
        """From progress.json, whose keys are val_nll, judged_nll and best_val_nll."""
        prefixes, counts = ("val_", "judged_", "best_val_"), {"step": Natural, "tokens": Natural}
        with reading(path):
            content = json.loads(path.read_bytes())
            scores = {key: float for key in content if key.startswith(prefixes)}
            # infinite for a head that gives a token the probability 0
            content = checked(content, counts | scores, ["step"], more=True, infinite=True)
        val, criterion, best = (
            {key.removeprefix(prefix): content[key] for key in scores if key.startswith(prefix)}
            for prefix in prefixes
        )
        return cls(content["step"], content.get("tokens", 0), val, criterion, best)

    def record(self) -> dict[str, Any]:
        """The content of progress.json."""
        scores = {"val_": self.val, "judged_": self.criterion, "best_val_": self.best}
        named = {prefix + name: value for prefix, by in scores.items() for name, value in by.items()}
        return {"step": self.step, "tokens": self.tokens, **named}


class Saveable(Protocol):
    """What writes itself into a folder: a tokenizer."""

    def save(self, folder: Path) -> None: ...


def save(
    path: Path,
    model: LanguageModel,
    config: TrainConfig,
    progress: Progress,
    optimizer: dict | None = None,
    tokenizer: Saveable | None = None,
) -> None:
    """Writes the folder `path`, replacing what was there. On any error (a full disk) the old one stays and
    the new one is removed.

    A tokenizer other than GPT-2's goes along, so that the folder alone is enough to sample.
    """
    aside, old = path.with_name(path.name + ".new"), path.with_name(path.name + ".old")
    shutil.rmtree(aside, ignore_errors=True)
    with writing(aside, f"could not write the checkpoint {path}"):
        save_file({k: v.cpu() for k, v in model.state().items()}, aside / "model.safetensors")
        if optimizer is not None:
            with open(aside / "optimizer.pt", "wb") as file:  # Python's file, whose errors say what is wrong
                torch.save(optimizer, file)
        if tokenizer is not None:
            tokenizer.save(aside)
        for name, content in (("config", asdict(config)), ("progress", progress.record())):
            (aside / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        write_manifest(aside, {}, (file.name for file in aside.iterdir()))
    # where only `old` is left (killed between these renames), it stays until the new one has its name
    if path.exists():
        shutil.rmtree(old, ignore_errors=True)
        path.rename(old)
    aside.rename(path)
    remove_unfinished(path.parent)


def remove_unfinished(out: Path) -> None:
    """Removes from a run's folder what killed saves left beside a whole checkpoint. Only the process that
    holds the folder may do so."""
    for which in ("last", "best"):
        for end in (".new", ".old") if (out / which).exists() else (".new",):
            shutil.rmtree(out / f"{which}{end}", ignore_errors=True)
    remove_leftovers(out)


@contextlib.contextmanager
def writing(folder: Path, failed: str) -> Iterator[None]:
    """Makes `folder`, to be filled; in the end all of it is on disk.

    On any error it is removed; a full disk is an OSError that says what failed.
    """
    folder.mkdir(parents=True)
    try:
        yield
        for file in filter(Path.is_file, folder.rglob("*")):
            with open(file, "rb") as content:
                os.fsync(content.fileno())
    except BaseException as e:
        shutil.rmtree(folder, ignore_errors=True)
        # of a full disk: safetensors has a kind of its own, torch raises a RuntimeError on top of Python's
        inner = e.__context__ if isinstance(e, RuntimeError) else None
        cause = inner if isinstance(inner, OSError) else e
        if isinstance(cause, (OSError, SafetensorError)):
            raise OSError(f"{failed}: {getattr(cause, 'strerror', None) or cause}") from e
        raise


def find_checkpoint(path: str | Path, which: str = "best") -> Path:
    """The checkpoint that `path` is, or its `which` ("best" or "last"), or the other one if that is missing.

    FileNotFoundError if there is neither.
    """
    path = Path(path)
    other = {"best": "last", "last": "best"}[which]
    # .old: a save that was killed between its two renames
    for p in (path, path / which, path / f"{which}.old", path / other, path / f"{other}.old"):
        if (p / "model.safetensors").is_file():
            return p
    near = "" if path.is_dir() else nearest_file(path)
    raise FileNotFoundError(f"no checkpoint in {path}{near or ': give the out folder of a training run'}")


def holds_run(out: Path) -> bool:
    """Whether a run has saved something in its folder `out`."""
    return any((out / which).is_dir() for which in ("last", "last.old", "best", "best.old"))


def is_run(path: str | Path) -> bool:
    """Whether `path` is a folder of ours, and not one of transformers, whose config.json has no progress.json
    beside it."""
    path = Path(path)
    return path.is_dir() and ((path / "progress.json").is_file() or not (path / "config.json").is_file())


def weights_digest(path: Path) -> str:
    """SHA-256 of a checkpoint's weights file; of several files, of their digests in the order of their
    names. UserError if there are none."""
    files = [path] if path.is_file() else sorted(path.glob("*.safetensors")) or sorted(path.glob("*.bin"))
    digests = [sha256_of(file) for file in files]
    if not digests:
        raise UserError(f"there are no weights in {path}")
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


@contextlib.contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """Holds `folder` for this process; UserError if another one holds it. The lock goes with the process,
    however it ends."""
    try:
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(locked(folder / ".lock", timeout=0))
            except filelock.Timeout:
                raise UserError(f"the output folder {folder} is in use by another run") from None
            yield
    finally:
        with contextlib.suppress(OSError):  # a run that failed before it wrote anything leaves nothing
            folder.rmdir()
