"""What a run is: a configuration, how far it has come, and weights; and when two are the same training."""

import importlib
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from common.config import Name, Natural, with_defaults
from common.errors import UserError, nearest_file, reading
from common.files import read_json
from common.manifest import NAME as MANIFEST
from common.manifest import check_file, read_manifest
from common.places import modules
from config.defaults import TrainConfig
from model import TRUNKS, GPTConfig, LanguageModel, build, trunk_config, trunk_on_meta
from training.checkpoint import Progress, find_checkpoint, is_run, weights_digest

# keys that a resumed run may change: none of them changes what a step computes, but for the rounding of
# another device, and of sums over other parts of a batch, which have dropout masks of their own
RESUMABLE = {
    *("resume", "out_dir", "max_steps", "eval_interval", "eval_steps", "log_interval"),
    *("wandb", "wandb_project", "device", "compile", "source", "label_store", "data", "teacher_weights"),
    *("processes", "micro_batch", "row", "overlay"),
}
# what a run started from: a resumed run keeps these, even if their source has changed since
KEPT = {"init_weights", "init_spent", "teacher_spent", "commit"}


class Degenerate(UserError):
    """A model whose weights or probabilities are not numbers, or whose texts cannot be measured.

    `reason`: what is wrong with it, without its path.
    """

    def __init__(self, reason: str, path: Path | None = None):
        super().__init__(f"the checkpoint {path} cannot be used: {reason}" if path else reason)
        self.reason = reason


# -----------------------------------------------------------------------------
# What a run records


@dataclass
class RunConfig(TrainConfig):
    """What train.py was asked for, and what the data, other runs and the code gave it."""

    # fmt: off
    vocab_size: Natural = 0
    tokenizer_fingerprint: str = ""
    data_sha256: str = ""                   # of the training text's tokens
    validation_sha256: str | None = None
    train_tokens: int | None = None
    processes: int | None = None
    commit: str = ""                        # of the code that began it
    # the weights that it started from and those of its teacher, and what these had cost (training_cost)
    init_weights: str | None = None         # SHA-256
    init_spent: dict[str, Any] | None = None
    teacher_sha256: str | None = None       # of its labels' teacher, whoever trained it
    teacher_weights: str | None = None
    teacher_spent: dict[str, Any] | None = None
    # fmt: on

    def __post_init__(self) -> None:
        """Refuses nothing: what was trained once can be read, whatever train.py takes today."""


def difference(a: Mapping[str, Any], b: Mapping[str, Any], but: Collection[str] = ()) -> str:
    """The first key in which the records `a` and `b` differ, with both values: "seed (1, not 2)"; "" if they
    are the same.

    Each is a configuration, a row's settings, its identity. A key that only one of them has tells nothing: an
    earlier version did not record it. Fill in the defaults first where that is a value
    (common.config.with_defaults).

    but  keys that may differ, such as RESUMABLE
    """
    for key in b:
        if key in a and key not in but and a[key] != b[key]:
            return f"{key} ({a[key]!r}, not {b[key]!r})"
    return ""


def refuse_other_run(last: "Run", now: dict[str, Any]) -> None:
    """UserError if `last` is not of the run that `now` asks to resume, as far as an earlier version has
    recorded it, and as far as `now` is known (not None). max_steps may be another where the decay keeps its
    end, the names that its row has in tables may not."""
    end = "lr_decay_steps or max_steps"  # of the decay
    before, now = ({**c, end: c["lr_decay_steps"] or c["max_steps"]} for c in (last.record, now))
    open_yet = {key for key, value in now.items() if value is None}
    named = {key for key in ("row", "overlay") if before[key]}
    if changed := difference(before, now, but=RESUMABLE - named | KEPT | {"lr_decay_steps"} | open_yet):
        raise UserError(
            f"cannot resume {last.path.parent}: it has another {changed}; "
            f"--resume {last.path.parent} alone goes on as it began"
        )


# -----------------------------------------------------------------------------
# A run


class Run:
    """A run at one of its checkpoints.

    path      the checkpoint's folder
    record    its configuration as config.json has it, with today's keys, the usual value of each that it
              lacks, and what only an earlier version knows: what a row of a table says of its training
    config    the same as a dataclass, checked
    manifest  its files' digests, compared as they are read; None: an earlier version saved the run
    """

    def __init__(self, folder: str | Path, which: str = "best"):
        """The checkpoint that `folder` is, or its `which` ("best" or "last"), or the other one if there is no
        such. OSError or UserError naming the file that is missing or damaged."""
        if Path(folder).exists() and not is_run(folder):
            raise UserError(
                f"{folder} is no run: python labs/transformers/import.py {folder} out/NAME makes one"
            )
        while True:
            self.path = find_checkpoint(folder, which)
            self.manifest = self._read_manifest()
            try:
                self._read()
            except (OSError, ValueError):
                if not self.replaced():
                    raise
            if not self.replaced():  # else its training has saved meanwhile
                return

    def _read(self) -> None:
        for name in self.manifest["files"] if self.manifest else ():
            if name.endswith(".json"):  # large files are compared when they are read
                self.file(name)
        kinds = {f.name: f.type for f in fields(RunConfig)}
        needed = ["tokenizer", "tokenizer_fingerprint", "head", *(f.name for f in fields(GPTConfig))]
        of_needed = {"name": Name, **{key: kinds[key] for key in needed}}
        with reading(self.path / "config.json"):  # which anybody may have written
            self.record = with_defaults(TrainConfig, read_json(self.path / "config.json", of_needed, kinds))
            self.config = RunConfig(**{key: self.record[key] for key in kinds if key in self.record})
        self.progress = Progress.read(self.path / "progress.json")

    def _read_manifest(self) -> dict[str, Any] | None:
        return read_manifest(self.path) if (self.path / MANIFEST).is_file() else None

    def replaced(self) -> bool:
        """Whether its training has saved another checkpoint in its place since it was opened."""
        return self._read_manifest() != self.manifest

    def file(self, name: str) -> Path:
        """The path of one of its files. UserError if it is not the one that was saved."""
        return self.path / name if self.manifest is None else check_file(self.path, name, self.manifest)

    @property
    def weights_sha256(self) -> str:
        """SHA-256 of its weights file."""
        return self.manifest["files"]["model.safetensors"] if self.manifest else weights_digest(self.path)

    def weights(self) -> dict[str, Tensor]:
        """Name -> tensor, on the CPU. UserError if the file is damaged, or is not the one that was opened."""
        with reading(self.path / "model.safetensors"):
            weights = load_file(self.file("model.safetensors"))
            if self.replaced():
                raise UserError("its training has saved another one meanwhile: begin again")
            return weights

    def optimizer(self) -> dict[str, Any]:
        """The state that the training goes on with."""
        # ignored: warnings about pickles that torch then refuses
        with reading(self.path / "optimizer.pt"), warnings.catch_warnings(action="ignore"):
            return torch.load(self.file("optimizer.pt"), map_location="cpu", weights_only=True)


def find_run(name: str) -> Path:
    """The folder of the run `name`. A model of another program (a folder of transformers, a name on the hub,
    nanoGPT's file) becomes one in out/ first, by a lab's import.py."""
    if is_run(name):
        return Path(name)
    if not Path(name).exists() and Path(name).parent.is_dir() and Path(name).parent != Path():
        raise UserError(f"there is no run {name}{nearest_file(Path(name))}")
    importers = [*modules("import").values()]
    if not importers:
        raise UserError(
            f"{name} is no run, and labs/transformers, which makes runs of other models, is missing"
        )
    return importlib.import_module(importers[0]).run_folder(name)


def load_model(
    path: str | Path,
    which: str = "best",
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> tuple[LanguageModel, Run]:
    """The model of a run, in eval mode on `device`, for matrix products in `dtype` (see
    LanguageModel.cast_linears). UserError if its weights do not fit its configuration."""
    run = Run(path, which)
    weights = run.weights()
    with reading(run.path):
        # before it is built: somebody's config.json can ask for any size
        expected = trunk_config(run.record).parameters
        if run.config.trunk not in TRUNKS:
            expected = sum(p.numel() for p in trunk_on_meta(run.record).parameters())
        if expected > 4 * (stored := sum(w.numel() for w in weights.values())):
            raise UserError(f"it has {stored:,} weights, its config.json means {expected:,} parameters")
        model = build(run.record)
    restore(model, weights, run.path)
    model.cast_linears(dtype)
    return model.eval().requires_grad_(False).to(device), run


def restore(model: LanguageModel, weights: dict[str, Tensor], path: Path) -> None:
    """Copies the `weights` of the run at `path` into `model`.

    UserError naming the first tensor that does not fit, Degenerate one that holds nan or inf.
    """
    tensors, kinds = model.tensors(), (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    with torch.no_grad():
        for k in sorted(tensors.keys() | weights.keys()):
            p, w = tensors.get(k), weights.get(k)
            if p is None or w is None or p.shape != w.shape or w.dtype not in kinds:
                has, needs = (None if t is None else (t.dtype, tuple(t.shape)) for t in (w, p))
                raise UserError(f"{path} does not fit its configuration: {k} is {has}, not {needs}")
            if not torch.stack(w.float().aminmax()).isfinite().all():  # both are nan if any weight is
                raise Degenerate(f"its weights hold nan or inf ({k})", path)
            p.copy_(w)


# -----------------------------------------------------------------------------
# What a run has spent: steps and tokens of its training, and tokens of its teacher. A run that starts from
# another one, or learns from its labels, has also spent what that one had.

Counts = dict[str, Any]  # steps, train_tokens, teacher_tokens; without those that are not known
NOTHING: Counts = {"steps": 0, "train_tokens": 0, "teacher_tokens": 0}


def training_cost(run: Run) -> Counts:
    """What a run has spent at its checkpoint, by its own records: the columns of these names."""
    c, p = run.config, run.progress
    before = (c.init_spent or {}) if c.init_weights else NOTHING
    teacher = (c.teacher_spent or {}) if c.teacher_weights else NOTHING
    labels: int | None = 0  # tokens that the teacher read for the store: all windows once
    if c.labels != "true":
        labels = c.train_tokens and (c.train_tokens - 1) // c.block_size * c.block_size
    teachers = (teacher.get("train_tokens"), teacher.get("teacher_tokens"))
    parts = {
        "steps": (p.step, before.get("steps")),
        "train_tokens": (p.tokens, before.get("train_tokens")),
        "teacher_tokens": (labels, before.get("teacher_tokens"), *teachers),
    }
    return {key: sum(counts) for key, counts in parts.items() if None not in counts}
