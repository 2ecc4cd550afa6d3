"""Checkpoints: a folder with the weights as safetensors, the configuration and the progress as JSON and, to
resume, the optimizer state.

Written aside, then renamed: a folder of the final name is always whole. Nothing is pickled; the optimizer
loads with weights_only=True.
"""

import contextlib
import hashlib
import json
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol, get_type_hints

import filelock
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from common.config import Dtype, Name, Natural, RowName
from common.errors import InUse, UserError, reading
from common.files import locked, read_json, sync_folder
from common.places import translated
from model import TRUNKS, GPTConfig, LanguageModel, build, sketch, trunk_config
from training.gpt2 import read_gpt2

# What is read of config.json and progress.json, and of which type: anybody may have written them
_MODEL: dict[str, type] = get_type_hints(GPTConfig)
_HEAD = {"head": str, "head_args": dict, "bayesian": bool, "prior_sigma": float}
# what earlier checkpoints do not say
_TRUNK = {"trunk": str, "trunk_args": dict, "tied": bool, "gain": float, "learn_gain": bool}
_TRUNK |= {"row": RowName, "overlay": RowName}
_CONFIG = {"name": Name, "tokenizer": str, "tokenizer_fingerprint": str, **_MODEL, **_HEAD}
_RUN = {
    "dataset": str,
    "data": str,
    "data_sha256": str,
    "teacher": str,
    "init_from": str,
    "max_steps": int,
    "lr_decay_steps": int,
    "dtype": Dtype,
}
_PROGRESS = {"tokens": int, "best_val_nll": float}
_SCORED = {"val_nll": float | None, "weights_sha256": str}
_JUDGED = {"best_val_error": float}  # a classifier's
CLASSES = "classes"  # what stands for the tokenizer of a classifier


class Degenerate(UserError):
    """A model whose weights or probabilities are not numbers, or whose texts cannot be measured.

    `reason`: what is wrong with it, without its path.
    """

    def __init__(self, reason: str, path: Path | None = None):
        checkpoint = f"the checkpoint {path} cannot be used: {reason}; use another one or train again"
        super().__init__(checkpoint if path else reason)
        self.reason = reason


class Saveable(Protocol):
    """What writes itself into a folder: a tokenizer."""

    def save(self, folder: Path) -> None: ...


class Checkpoint(NamedTuple):
    config: dict[str, Any]  # the run's configuration, with vocab_size and tokenizer
    progress: dict[str, Any]  # step, tokens, val_nll, ...
    weights: dict[str, Tensor]
    optimizer: dict[str, Any] | None
    path: Path

    @property
    def foreign(self) -> bool:
        """Whether another program trained it, of whose data and settings nothing is known."""
        return not self.progress


def save(
    path: Path,
    model: LanguageModel,
    config: dict,
    progress: dict,
    optimizer: dict | None = None,
    tokenizer: Saveable | None = None,
) -> None:
    """Writes the folder `path`, replacing what was there. On any error (a full disk) the old one stays and
    the new one is removed.

    A tokenizer other than GPT-2's goes along, so that the folder alone is enough to sample.
    """
    aside, old = path.with_name(path.name + ".new"), path.with_name(path.name + ".old")
    shutil.rmtree(aside, ignore_errors=True)
    with writing(
        aside,
        f"could not write the checkpoint {path}",
        "the one before it is untouched: free some disk space and --resume",
    ):
        save_file({k: v.cpu() for k, v in model.state().items()}, aside / "model.safetensors")
        if optimizer is not None:
            torch.save(optimizer, aside / "optimizer.pt")
        if tokenizer is not None:
            tokenizer.save(aside)
        progress = progress | {"weights_sha256": weights_digest(aside)}
        for name, content in (("config", config), ("progress", progress)):
            (aside / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    # where only `old` is left (killed between these renames), it stays until the new one has its name
    if path.exists():
        shutil.rmtree(old, ignore_errors=True)
        path.rename(old)
    aside.rename(path)
    shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def writing(folder: Path, failed: str, remedy: str) -> Iterator[None]:
    """Makes `folder`, to be filled; in the end all of it is on disk.

    On any error it is removed; a full disk is an OSError that says what failed and the remedy.
    """
    folder.mkdir(parents=True)
    try:
        yield
        sync_folder(folder)
    except BaseException as e:
        shutil.rmtree(folder, ignore_errors=True)
        # torch and safetensors wrap a full disk in their own kinds
        if isinstance(e, (OSError, RuntimeError, SafetensorError)):
            raise OSError(f"{failed}: {e}; {remedy}") from e
        raise


def find(path: str | Path, which: str = "best") -> Path:
    """The checkpoint folder meant by `path`: itself, or its `which` ("best" or "last"), or the other one if
    there is no such.

    FileNotFoundError if there is none.
    """
    path = Path(path)
    other = {"best": "last", "last": "best"}[which]
    # .old: a save that was killed between its two renames
    for p in (path, path / which, path / f"{which}.old", path / other, path / f"{other}.old"):
        if (p / "model.safetensors").is_file():
            return p
    raise FileNotFoundError(
        f"no checkpoint in {path}: give the out folder of a training run, or train one "
        "(python train.py config/NAME.py)"
    )


def begun(out: Path) -> bool:
    """Whether a run has saved something in its folder `out`."""
    return any((out / which).is_dir() for which in ("last", "last.old", "best", "best.old"))


def is_run(path: str | Path) -> bool:
    """Whether `path` is a folder of ours, and not one of transformers, whose config.json has no progress.json
    beside it."""
    path = Path(path)
    return path.is_dir() and ((path / "progress.json").is_file() or not (path / "config.json").is_file())


def _read_config(path: Path, run: bool, classifier: bool) -> dict[str, Any]:
    config = translated(read_json(path, _CONFIG | (_RUN if run else {}), _RUN | _TRUNK))
    if config["tokenizer"] == CLASSES and not classifier:
        raise UserError(f"{path} is a classifier's, no language model's")
    if beside := config.get("auxiliary"):  # a loss that multi_token, token_order and mu_loss had
        raise UserError(f"{path} has auxiliary = {beside!r}: commit b5008e1 reads it")
    if (order := config.get("order", "left_to_right")) != "left_to_right":  # labs/orders translates it
        raise UserError(f"{path} has order = {order!r}, which labs/orders reads: it is not there")
    trunk_config(config)
    return config


def _read_progress(path: Path, run: bool) -> dict[str, Any]:
    needed = {"step": Natural} | (_PROGRESS if run else {})
    # infinite before the first evaluation, and for a head that gives a token the probability 0
    return read_json(path, needed, _PROGRESS | _JUDGED | _SCORED, infinite=True)


def load(
    path: str | Path,
    optimizer: bool = False,
    weights: bool = True,
    run: bool = False,
    classifier: bool = False,
) -> Checkpoint:
    """Reads a checkpoint folder onto the CPU, with or without its tensors.

    run         its configuration has all that training writes; to sample from it takes less
    classifier  it may be a classifier's; else UserError if it is one

    OSError or UserError naming the file that is missing or damaged.
    """
    path = Path(path)
    with reading(path / "config.json"):
        config = _read_config(path / "config.json", run, classifier)
    progress = _read_progress(path / "progress.json", run)
    saved = progress.pop("weights_sha256", None)  # an earlier version has none
    with reading(path / "model.safetensors"):
        tensors = load_file(path / "model.safetensors") if weights else {}
        if optimizer and saved and saved != weights_digest(path):
            raise ValueError("its SHA-256 is not the one in progress.json")
    state = None
    if optimizer:
        # ignored: warnings about pickles that torch then refuses
        with reading(path / "optimizer.pt"), warnings.catch_warnings(action="ignore"):
            state = torch.load(path / "optimizer.pt", map_location="cpu", weights_only=True)
    return Checkpoint(config, progress, tensors, state, path)


def open_checkpoint(path: str | Path, which: str = "best", hub: bool = False, **how: bool) -> Checkpoint:
    """A checkpoint: `which` of a run of ours, with `load`'s options `how`; or a GPT-2 that another program
    wrote, a folder or a file here, or with `hub` a name there (training/gpt2.py)."""
    if is_run(path) or not (hub or Path(path).exists()):
        return load(find(path, which), **how)
    config, weights = read_gpt2(str(path))
    return Checkpoint(config, {}, weights, None, Path(path))


def load_model(
    path: str | Path,
    which: str = "best",
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    **how: bool,
) -> tuple[LanguageModel, Checkpoint]:
    """The model of a checkpoint, in eval mode on `device`, for matrix products in `dtype` (see
    LanguageModel.lower); `how`: as open_checkpoint has it. UserError if its weights do not fit its
    configuration."""
    ckpt = open_checkpoint(path, which, **how)
    # before it is built: a foreign config.json can ask for any size
    expected, stored = trunk_config(ckpt.config).parameters, sum(w.numel() for w in ckpt.weights.values())
    if ckpt.config.get("trunk", "gpt") not in TRUNKS:
        expected = sum(p.numel() for p in sketch(ckpt.config).parameters())
    if expected > 4 * stored:
        raise UserError(f"{ckpt.path} has {stored:,} weights, its config.json means {expected:,} parameters")
    model = build(ckpt.config)
    restore(model, ckpt)
    model.lower(dtype)
    return model.eval().requires_grad_(False).to(device), ckpt


def restore(model: LanguageModel, ckpt: Checkpoint) -> None:
    """Copies the checkpoint's weights into `model`.

    UserError naming the first tensor that does not fit, Degenerate one that holds nan or inf.
    """
    tensors, kinds = model.tensors(), (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    with torch.no_grad():
        for k in sorted(tensors.keys() | ckpt.weights.keys()):
            p, w = tensors.get(k), ckpt.weights.get(k)
            if p is None or w is None or p.shape != w.shape or w.dtype not in kinds:
                has, needs = (None if t is None else (t.dtype, tuple(t.shape)) for t in (w, p))
                raise UserError(f"{ckpt.path} does not fit its configuration: {k} is {has}, not {needs}")
            if not torch.stack(w.float().aminmax()).isfinite().all():  # both are nan if any weight is
                raise Degenerate(f"its weights hold nan or inf ({k})", ckpt.path)
            p.copy_(w)


def weights_digest(path: Path) -> str:
    """SHA-256 of a checkpoint's weights file; of several files, of their digests in the order of their
    names. UserError if there are none."""
    files = [path] if path.is_file() else sorted(path.glob("*.safetensors")) or sorted(path.glob("*.bin"))
    digests = []
    for file in files:
        with open(file, "rb") as f:
            digests.append(hashlib.file_digest(f, "sha256").hexdigest())
    if not digests:
        raise UserError(f"there are no weights in {path}: give a folder with model.safetensors")
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


@contextlib.contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """Holds `folder` for this process; InUse if another one holds it. The lock goes with the process,
    however it ends."""
    try:
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(locked(folder / ".lock", timeout=0))
            except filelock.Timeout:
                raise InUse(
                    f"the output folder {folder} is in use by another run: "
                    "wait for it or choose another --out_dir"
                ) from None
            yield
    finally:
        with contextlib.suppress(OSError):  # a run that failed before it wrote anything leaves nothing
            folder.rmdir()
