"""Checkpoints: a folder with the weights as safetensors, the configuration and the progress as JSON and, to resume, the optimizer state.

    python checkpoint.py out/baseline FOLDER     writes the checkpoint as a GPT2LMHeadModel that transformers reads

Written aside, then renamed: a folder of the final name is always whole. Nothing is pickled; the optimizer loads with weights_only=True.
"""

import contextlib
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any, Iterator, NamedTuple

import filelock
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from configurator import cli
from data.tokens import GPT2Tokenizer, SavedTokenizer, Tokenizer, load_tokenizer
from files import beside, locked, sync_folder
from heads import BayesianProjection, OutputHead, Softmax, make_head
from model import GPT, GPTConfig, to_gpt2


class Model(nn.Module):
    """A trunk and its output head: what a checkpoint holds."""

    def __init__(self, trunk: GPT, head: OutputHead):
        super().__init__()
        self.trunk, self.head = trunk, head

    def state(self) -> dict[str, Tensor]:
        """Name -> tensor, each shared parameter once (the projection is the token embedding)."""
        return {k: p.detach().contiguous() for k, p in self.named_parameters()}  # named_parameters skips duplicates


_MODEL = ("vocab_size", "block_size", "n_layer", "n_head", "n_embd", "dropout")
_HEAD = ("head", "head_args", "bayesian", "prior_sigma")


def build(config: dict[str, Any]) -> Model:
    """A new model from a configuration: the keys of GPTConfig, head, head_args, bayesian, prior_sigma."""
    trunk = GPT(GPTConfig(**{k: config[k] for k in _MODEL}))
    head = make_head(config["head"], config["vocab_size"], trunk.wte.weight, *(config[k] for k in _HEAD[1:]))
    return Model(trunk, head)


class Degenerate(ValueError):
    """A model whose weights or probabilities are not numbers, or whose texts cannot be measured.

    `what` is wrong with it, without its path.
    """

    def __init__(self, what: str, path: Path | None = None):
        super().__init__(f"the checkpoint {path} cannot be used: {what}; use another one or train again" if path else what)
        self.what = what


class Checkpoint(NamedTuple):
    config: dict[str, Any]    # the run's configuration, with vocab_size and tokenizer
    progress: dict[str, Any]  # step, tokens, val_nll, ...
    weights: dict[str, Tensor]
    optimizer: dict[str, Any] | None
    path: Path


def save(path: Path, model: Model, config: dict, progress: dict, optimizer: dict | None = None, tokenizer: Tokenizer | None = None) -> None:
    """Writes the folder `path`, replacing what was there. On any error (a full disk) the old one stays and the new one is removed.

    A tokenizer other than GPT-2's goes along, so that the folder alone is enough to sample.
    """
    aside, old = path.with_name(path.name + ".new"), path.with_name(path.name + ".old")
    shutil.rmtree(aside, ignore_errors=True)
    with writing(aside, f"could not write the checkpoint {path}", "the one before it is untouched: free some disk space and --resume"):
        save_file({k: v.cpu() for k, v in model.state().items()}, aside / "model.safetensors")
        if optimizer is not None:
            torch.save(optimizer, aside / "optimizer.pt")
        if isinstance(tokenizer, SavedTokenizer):
            tokenizer.save(aside)
        for name, content in (("config", config), ("progress", progress)):
            (aside / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if path.exists():  # where only `old` is left (killed between these renames), it stays until the new one has its name
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
    """The checkpoint folder meant by `path`: itself, or its `which` ("best" or "last"), or the other one if there is no such.

    FileNotFoundError if there is none.
    """
    path = Path(path)
    other = {"best": "last", "last": "best"}[which]
    # .old: a save that was killed between its two renames
    for p in (path, path / which, path / f"{which}.old", path / other, path / f"{other}.old"):
        if (p / "model.safetensors").is_file():
            return p
    raise FileNotFoundError(f"no checkpoint in {path}: give the out folder of a training run, or train one (python train.py config/NAME.py)")


def is_run(path: str | Path) -> bool:
    """Whether `path` is a folder of ours, and not one of transformers, whose config.json has no progress.json beside it."""
    path = Path(path)
    return path.is_dir() and ((path / "progress.json").is_file() or not (path / "config.json").is_file())


def load(path: str | Path, optimizer: bool = False, weights: bool = True) -> Checkpoint:
    """Reads a checkpoint folder onto the CPU, with or without its tensors. ValueError if a file of it is missing, cut short or not what it should be."""
    path = Path(path)
    part = ""
    try:
        part = "config.json"
        config = json.loads((path / part).read_text(encoding="utf-8"))
        for key in ("name", "tokenizer", "tokenizer_fingerprint", *_MODEL, *_HEAD):
            config[key]  # KeyError or TypeError: JSON, but no configuration
        part = "progress.json"
        progress = json.loads((path / part).read_text(encoding="utf-8"))
        progress["step"]
        part = "model.safetensors"
        tensors = load_file(path / part) if weights else {}
        part = "optimizer.pt"
        state = torch.load(path / part, map_location="cpu", weights_only=True) if optimizer else None
    except FileNotFoundError:
        raise ValueError(f"the checkpoint {path} has no {part}: it is incomplete; use another one or train again") from None
    except Exception as e:  # every reader has its own kinds of error; all mean the same to the user
        raise ValueError(f"the checkpoint {path} cannot be read: {part} is cut short or damaged ({type(e).__name__}); use another one or train again") from e
    return Checkpoint(config, progress, tensors, state, path)


def load_model(path: str | Path, which: str = "best", device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> tuple[Model, Checkpoint]:
    """The model of a run's checkpoint, in eval mode on `device`, for matrix products in `dtype` (see GPT.lower). ValueError if its weights do not
    fit its configuration."""
    ckpt = load(find(path, which))
    model = build(ckpt.config)
    restore(model, ckpt)
    model.trunk.lower(dtype)
    return model.eval().requires_grad_(False).to(device), ckpt


def tokenizer_of(ckpt: Checkpoint) -> Tokenizer:
    """The tokenizer a checkpoint was trained with: GPT-2's, or the one saved in its folder.

    ValueError if another one lies there.
    """
    try:
        tokenizer = GPT2Tokenizer() if ckpt.config["tokenizer"] == "gpt2" else load_tokenizer(ckpt.path)
    except FileNotFoundError:
        raise ValueError(f"the checkpoint {ckpt.path} has no tokenizer.json: it is incomplete; use another one or train again") from None
    if tokenizer.fingerprint != ckpt.config["tokenizer_fingerprint"]:
        raise ValueError(f"{ckpt.path / 'tokenizer.json'} is not the tokenizer ({ckpt.config['tokenizer']}) that this model was trained with: "
                         f"put back its own, from the run's other checkpoint or the prepared data folder, or use another checkpoint")
    return tokenizer


def restore(model: Model, ckpt: Checkpoint) -> None:
    """Copies the checkpoint's weights into `model`.

    ValueError naming the first tensor that does not fit, Degenerate one that holds nan or inf.
    """
    own = dict(model.named_parameters())
    if own.keys() != ckpt.weights.keys():
        odd = sorted(own.keys() ^ ckpt.weights.keys())
        raise ValueError(f"the checkpoint {ckpt.path} does not fit its configuration: {odd[0]} is missing or extra")
    with torch.no_grad():
        for k, p in own.items():
            if p.shape != ckpt.weights[k].shape:
                raise ValueError(f"the checkpoint {ckpt.path} does not fit its configuration: {k} is {tuple(ckpt.weights[k].shape)}, not {tuple(p.shape)}")
            if not torch.stack(ckpt.weights[k].aminmax()).isfinite().all():  # both are nan if any weight is
                raise Degenerate(f"its weights hold nan or inf ({k})", ckpt.path)
            p.copy_(ckpt.weights[k])


def weights_digest(path: Path) -> str:
    """SHA-256 of a checkpoint's weights file."""
    with open(path / "model.safetensors", "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


@contextlib.contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """Holds `folder` for this process; ValueError if another one holds it. The lock goes with the process, however it ends."""
    try:
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(locked(folder / ".lock", timeout=0))
            except filelock.Timeout:
                raise ValueError(f"the output folder {folder} is in use by another run: wait for it or choose another --out_dir") from None
            yield
    finally:
        with contextlib.suppress(OSError):  # a run that failed before it wrote anything leaves nothing
            folder.rmdir()


def export(path: str | Path, folder: str | Path) -> None:
    """Writes a run's best checkpoint as a `GPT2LMHeadModel` folder. ValueError if GPT-2 cannot compute it: another link, an output bias, Bayesian weights."""
    folder = Path(folder)
    if folder.exists():
        raise ValueError(f"{folder} exists: give the name of a new folder")
    model, ckpt = load_model(path)
    head, projection = model.head.head, model.head.projection
    if not (isinstance(head, Softmax) and type(head).link is Softmax.link) or projection.bias is not None or isinstance(projection, BayesianProjection):
        raise ValueError(f"{ckpt.path} has the head {ckpt.config['head']!r}{' with Bayesian weights' if ckpt.config['bayesian'] else ''}: a GPT2LMHeadModel computes a plain softmax only")
    tokenizer, aside = tokenizer_of(ckpt), beside(folder)
    with writing(aside, f"could not write {folder}", "nothing of it is left: free some disk space and run it again"):
        to_gpt2(model.trunk, aside)
        if isinstance(tokenizer, SavedTokenizer):
            tokenizer.save(aside)
    aside.rename(folder)


def main(argv: list[str]) -> int:
    if len(argv) != 2:
        raise ValueError("give a run and a new folder: python checkpoint.py out/baseline FOLDER")
    export(*argv)
    print(f"wrote {argv[1]}")
    return 0


if __name__ == "__main__":
    cli(main)()
