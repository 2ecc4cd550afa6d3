"""How a run begins and goes on: its schedule, its precision, weights to start from, and what a resumed run
may change."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from common.config import Dtype
from common.device import DTYPES, Precision, settle_dtype
from common.errors import UserError
from model import LanguageModel
from training import checkpoint
from training.checkpoint import Checkpoint
from training.distributed import Processes
from training.run import RESUMABLE, difference

if TYPE_CHECKING:
    from config.defaults import TrainConfig


# -----------------------------------------------------------------------------
# The schedule


def learning_rate(c: "TrainConfig", step: int) -> float:
    """Linear warm-up to learning_rate over warmup_steps, then a half cosine down to min_lr at
    lr_decay_steps."""
    end = c.lr_decay_steps or c.max_steps
    if step < c.warmup_steps:
        return c.learning_rate * (step + 1) / c.warmup_steps
    ratio = min(1.0, (step - c.warmup_steps) / max(1, end - c.warmup_steps))
    return c.min_lr + 0.5 * (1 + math.cos(math.pi * ratio)) * (c.learning_rate - c.min_lr)


# -----------------------------------------------------------------------------
# Going on


def refuse_other_run(out: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """UserError if the run in `out`, whose configuration is `before`, is not the one that `now` asks to
    resume, as far as an earlier version has recorded it. max_steps may be another where the cosine keeps its
    end."""
    end = "lr_decay_steps or max_steps"  # of the cosine
    before, now = ({**c, end: c["lr_decay_steps"] or c["max_steps"]} for c in (before, now))
    if changed := difference(before, now, but=RESUMABLE | {"lr_decay_steps"}):
        raise UserError(
            f"cannot resume {out}: it has another {changed}; --resume {out} alone goes on as it began; "
            f"--init_from={out} with a new --out_dir, without --resume, starts another run from its weights"
        )


def other_parts(before: dict[str, Any], world: int, micro_batch: int) -> str:
    """What a resumed run is told of a batch that is parted otherwise, over processes or in micro-batches; ""
    if it is not."""
    begun = before.get("processes") or world, before["micro_batch"]
    if begun == (world, micro_batch):
        return ""
    dropout = " and draws other dropout masks" if before["dropout"] else ""
    return (
        f"; with {world} process{'es' * (world > 1)} and micro_batch = {micro_batch}, begun with {begun[0]} "
        f"and {begun[1]}: each step has the same batch, but adds up its losses in another order{dropout}"
    )


def last_of(out: Path, optimizer: bool = True) -> Checkpoint:
    """The checkpoint that a run in `out` goes on from, with its optimizer, or without it and the weights.
    UserError if there is none."""
    path = checkpoint.find(out, "last")
    return checkpoint.load(path, optimizer, weights=optimizer, run=True, classifier=True)


def saved_best(out: Path) -> dict[str, Any]:
    """The progress of a run's checkpoint `best`; {} where there is none."""
    for which in ("best", "best.old"):
        if (out / which).is_dir():
            return checkpoint.load(out / which, weights=False, run=True, classifier=True).progress
    return {}


def agreed_dtype(name: Dtype, begun: Dtype | None, procs: Processes, say: Callable[[str], None]) -> Precision:
    """`settle_dtype` of rank 0, by its own device, for all processes."""
    if not procs.main:
        return Precision(DTYPES[procs.agreed(0)], "rank 0 says so")
    chosen = settle_dtype(name, procs.device, begun, say)
    procs.agreed(DTYPES.index(chosen.name))
    return chosen


# -----------------------------------------------------------------------------
# Starting from other weights


def refuse_other_tokens(key: str, name: str, config: dict[str, Any], tokenizer: str, digest: str) -> None:
    """UserError if the model `name`, of this configuration, has another tokenizer than the corpus, whose
    fingerprint is `digest`."""
    has = config["tokenizer_fingerprint"]
    if has != digest:
        raise UserError(
            f"{key} = {name!r} has another tokenizer ({config['tokenizer']}, {has[:12]}) than the corpus "
            f"({tokenizer}, {digest[:12]}): give one that has it, or prepare the corpus with that of {name}"
        )


def start_from(name: str, model: LanguageModel, config: dict[str, Any]) -> tuple[str, str | None]:
    """Copies into `model` every tensor of the same name and shape from another run or a GPT-2.

    (the words that say so, the digest of the weights of one of our runs). `config`: of the run that starts.
    UserError if they do not fit.
    """
    ckpt = checkpoint.open_checkpoint(name, hub=True)
    before, weights = ckpt.config, ckpt.weights
    refuse_other_tokens("init_from", name, before, config["tokenizer"], config["tokenizer_fingerprint"])
    gain = before.get("gain", 1.0)
    kinds = [(c.get("trunk", "gpt"), c["n_head"]) for c in (before, config)]  # which no tensor's shape tells
    if kinds[0] != kinds[1]:
        raise UserError(
            f"init_from = {name!r} has the trunk and n_head {kinds[0]}, this configuration {kinds[1]}: give "
            "those"
        )
    parameters, wpe = dict(model.named_parameters()), weights.get("trunk.wpe.weight")
    if wpe is not None and len(wpe) > config["block_size"]:  # a longer block serves a shorter one
        weights["trunk.wpe.weight"] = wpe[: config["block_size"]]
    fits = {k for k, p in parameters.items() if k in weights and weights[k].shape == p.shape}
    fits.discard("head.log_gain")  # g starts at `gain`
    unlike = [
        k for k in parameters.keys() - fits | weights.keys() - model.tensors() if k.startswith("trunk.")
    ]
    if unlike:
        raise UserError(
            f"init_from = {name!r} has another size ({min(unlike)}): give its n_layer, n_embd, block_size, "
            "trunk_args and vocabulary"
        )
    with torch.no_grad():
        for k in fits:
            parameters[k].copy_(weights[k])
    new, unused = (", ".join(sorted(keys)) for keys in (parameters.keys() - fits, weights.keys() - fits))
    was = weights["head.log_gain"].exp().item() if "head.log_gain" in weights else gain
    now = torch.as_tensor(model.head.gain).item()
    other = "" if math.isclose(was, now, rel_tol=1e-5) else f"; its gain was {was:.4g}, here {now:.4g}"
    kept = f"; as initialised: {new}" * bool(new) + f"; not used: {unused}" * bool(unused)
    digest = None if ckpt.foreign else checkpoint.weights_digest(ckpt.path)
    return f"started from {name}{kept}{other}", digest
