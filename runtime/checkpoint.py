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

from model import GPTConfig, LanguageModel, trunk_config, trunk_size
from model import build as new_model
from runtime.device import check_model
from runtime.errors import InUse, UserError, users_values
from runtime.files import locked, read_json, sync_folder
from runtime.names import check_row_name
from runtime.values import Dtype, Name, Natural, typed

# What is read of config.json and progress.json, and of which type: anybody may have written them
_ORDER = {"order": str, "sinusoidal": bool}
_MODEL: dict[str, type] = {k: t for k, t in get_type_hints(GPTConfig).items() if k not in _ORDER}
_HEAD = {"head": str, "head_args": dict, "bayesian": bool, "prior_sigma": float}
# what earlier checkpoints do not say
_TRUNK = {"trunk": str, "trunk_args": dict, "tied": bool, "gain": float, "learn_gain": bool, "mixture": int}
_TRUNK |= _ORDER | {"head_rank": int, "auxiliary": str, "auxiliary_args": dict, "row": Name, "overlay": Name}
_CONFIG = {"name": str, "tokenizer": str, "tokenizer_fingerprint": str, **_MODEL, **_HEAD}
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
_SCORED = {"val_nll": float | None}
_JUDGED = {"best_val_error": float}  # a classifier's
CLASSES = "classes"  # what stands for the tokenizer of a classifier


def build(config: dict[str, Any]) -> LanguageModel:
    """`model.build`, for a configuration that a user gave. UserError if there is no such model, or if it does
    not fit into memory."""
    with users_values():
        check_model(trunk_size(config))
        return new_model(config)


class Degenerate(UserError):
    """A model whose weights or probabilities are not numbers, or whose texts cannot be measured.

    `reason`: what is wrong with it, without its path.
    """

    def __init__(self, reason: str, path: Path | None = None):
        checkpoint = f"the checkpoint {path} cannot be used: {reason}; use another one or train again"
        super().__init__(checkpoint if path else reason)
        self.reason = reason


class NoLanguageModel(UserError):
    """A classifier's checkpoint where a language model's is needed."""


class Saveable(Protocol):
    """What writes itself into a folder: a tokenizer."""

    def save(self, folder: Path) -> None: ...


class Checkpoint(NamedTuple):
    config: dict[str, Any]  # the run's configuration, with vocab_size and tokenizer
    progress: dict[str, Any]  # step, tokens, val_nll, ...
    weights: dict[str, Tensor]
    optimizer: dict[str, Any] | None
    path: Path


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


def _typed(content: Any, file: str, needed: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    """`content` of a JSON file, if it has all keys `needed`, and these and `others`, where it has them, are
    of their type. Else UserError."""
    if not isinstance(content, dict):
        raise UserError(f"{file} holds a {type(content).__name__}, not a dict")
    out = dict(content)
    for key, kind in {**others, **needed}.items():
        if key not in content and key not in needed:
            continue
        if key not in content:
            raise UserError(f"{file} has no {key!r}")
        try:
            out[key] = typed(key, content[key], kind)
        except UserError as error:
            raise UserError(f"{file} has {error}") from None
    return out


def _read_config(path: Path, run: bool, classifier: bool) -> dict[str, Any]:
    config = _typed(read_json(path, strict=True), "config.json", _CONFIG, _RUN | _TRUNK)
    if config["tokenizer"] == CLASSES and not classifier:
        raise NoLanguageModel(
            f"the checkpoint {path.parent} is a classifier's, no language model's: give a run on text"
        )
    if run:
        _typed(config, "config.json", _RUN, {})
    check_row_name(config["name"])
    trunk_config(config)
    return config


def _read_progress(path: Path, run: bool) -> dict[str, Any]:
    needed = {"step": Natural} | (_PROGRESS if run else {})
    return _typed(read_json(path), "progress.json", needed, _PROGRESS | _JUDGED | _SCORED)


def load(
    path: str | Path,
    optimizer: bool = False,
    weights: bool = True,
    run: bool = False,
    classifier: bool = False,
) -> Checkpoint:
    """Reads a checkpoint folder onto the CPU, with or without its tensors.

    run         its configuration has all that training writes; to sample from it takes less
    classifier  it may be a classifier's; else NoLanguageModel if it is one

    UserError if a file is missing, cut short or damaged.
    """
    path = Path(path)
    part = ""
    try:
        part = "config.json"
        config = _read_config(path / part, run, classifier)
        part = "progress.json"
        progress = _read_progress(path / part, run)
        part = "model.safetensors"
        tensors = load_file(path / part) if weights else {}
        part = "optimizer.pt"
        with warnings.catch_warnings(action="ignore"):  # about pickles that torch then refuses
            state = torch.load(path / part, map_location="cpu", weights_only=True) if optimizer else None
    except NoLanguageModel:
        raise
    except FileNotFoundError:
        raise UserError(
            f"the checkpoint {path} has no {part}: it is incomplete; use another one or train again"
        ) from None
    except Exception as e:  # every reader has its own kinds of error; all mean the same to the user
        why = str(e) if part.endswith(".json") and isinstance(e, ValueError) else type(e).__name__
        raise UserError(
            f"the checkpoint {path} cannot be read: {part} is cut short or damaged ({why}); use "
            f"another one or train again"
        ) from e
    return Checkpoint(config, progress, tensors, state, path)


def load_model(
    path: str | Path,
    which: str = "best",
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    classifier: bool = False,
) -> tuple[LanguageModel, Checkpoint]:
    """The model of a run's checkpoint, in eval mode on `device`, for matrix products in `dtype` (see
    LanguageModel.lower); it may be a `classifier`. UserError if its weights do not fit its configuration."""
    ckpt = load(find(path, which), classifier=classifier)
    size = {k: ckpt.config[k] for k in _MODEL}
    with users_values():
        expected = trunk_size(ckpt.config).parameters
    stored = sum(w.numel() for w in ckpt.weights.values())
    if expected > 4 * stored:  # before it is built: a foreign config.json can ask for any size
        raise UserError(
            f"the checkpoint {ckpt.path} does not fit its configuration: "
            f"{', '.join(f'{k} = {v}' for k, v in size.items())} means {expected:,} parameters, "
            f"its weights have {stored:,}"
        )
    model = build(ckpt.config)
    restore(model, ckpt)
    model.lower(dtype)
    return model.eval().requires_grad_(False).to(device), ckpt


def restore(model: LanguageModel, ckpt: Checkpoint) -> None:
    """Copies the checkpoint's weights into `model`.

    UserError naming the first tensor that does not fit, Degenerate one that holds nan or inf.
    """
    tensors = model.tensors()
    if tensors.keys() != ckpt.weights.keys():
        different = sorted(tensors.keys() ^ ckpt.weights.keys())
        raise UserError(
            f"the checkpoint {ckpt.path} does not fit its configuration: {different[0]} is missing or extra"
        )
    with torch.no_grad():
        for k, p in tensors.items():
            w, wrong = ckpt.weights[k], ""
            if not w.is_floating_point():
                wrong = f"of {w.dtype}"
            elif p.shape != w.shape:
                wrong = f"{tuple(w.shape)}, not {tuple(p.shape)}"
            if wrong:
                raise UserError(f"the checkpoint {ckpt.path} does not fit its configuration: {k} is {wrong}")
            if not torch.stack(w.aminmax()).isfinite().all():  # both are nan if any weight is
                raise Degenerate(f"its weights hold nan or inf ({k})", ckpt.path)
            p.copy_(w)


def weights_digest(path: Path) -> str:
    """SHA-256 of a checkpoint's weights file."""
    with open(path / "model.safetensors", "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


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
