"""How a run begins and goes on: its schedule, its precision, weights to start from, and what a resumed run
may change."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from model import LanguageModel, reading
from runtime import checkpoint
from runtime.checkpoint import Checkpoint
from runtime.device import DTYPES, Precision, settle_dtype
from runtime.errors import UserError
from runtime.gpt2 import from_gpt2, vocabulary_of
from runtime.processes import Processes
from runtime.values import Dtype

if TYPE_CHECKING:
    from config.defaults import TrainConfig

# keys that a resumed run may change: none of them changes what a step computes, but for the rounding of
# another device, and of sums over other parts of a batch, which have dropout masks of their own
RESUMABLE = {
    *("resume", "out_dir", "max_steps", "eval_interval", "eval_steps", "log_interval"),
    *("wandb", "wandb_project", "device", "compile", "source", "label_store", "data"),
    *("teacher_weights", "processes", "micro_batch", "row", "overlay"),
}


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


def adopt_schedule(c: "TrainConfig", ckpt: Checkpoint) -> tuple["TrainConfig", str]:
    """(the configuration `c` with the end of the cosine that a resumed run has, the words that say so).

    A resumed run keeps the end of its cosine. Only a finished one can be given more steps after that end, or
    another end. UserError for a change that would make the steps done so far those of another schedule.
    """
    before, step = ckpt.config, ckpt.progress["step"]
    end = before["lr_decay_steps"] or before["max_steps"]
    finished = step >= before["max_steps"]
    if c.max_steps < step:
        raise UserError(
            f"max_steps = {c.max_steps}, but the run is at step {step} already: give at least as many, "
            "or another --out_dir"
        )
    new = c.lr_decay_steps or (end if finished or before["lr_decay_steps"] else c.max_steps)
    if new != end and not finished:
        key = "lr_decay_steps" if c.lr_decay_steps or before["lr_decay_steps"] else "max_steps"
        raise UserError(
            f"{key} = {new}, but the run's learning rate decays until {key} = {end}: keep it "
            f"(--lr_decay_steps={end} with another --max_steps goes on at min_lr after it), or finish the "
            "run, which can then be extended"
        )
    explicit = c.lr_decay_steps or before["lr_decay_steps"] or new != c.max_steps
    now = replace(c, lr_decay_steps=new if explicit else 0)
    if not finished or (c.max_steps == before["max_steps"] and new == end):
        return now, ""
    return now, f"; it was finished and goes on to step {c.max_steps}: {_extension(now, step, end, new)}"


def _extension(c: "TrainConfig", step: int, end: int, new: int) -> str:
    """What happens to the learning rate of a finished run whose cosine ended at `end` and now ends at
    `new`."""
    if new != end:
        was, now = learning_rate(replace(c, lr_decay_steps=end), step), learning_rate(c, step)
        return (
            f"its cosine ended at step {end} and now ends at step {new}, so the learning rate jumps from "
            f"{was:.2e} to {now:.2e}"
        )
    if end > step:
        return f"its cosine goes on to step {end}"
    over = f"its cosine was over at step {end}, the further steps"
    if step < c.warmup_steps:
        over = f"its warm-up goes on to step {c.warmup_steps}, the steps after it"
    return f"{over} run at min_lr = {c.min_lr:g} (--lr_decay_steps gives the cosine another end)"


# -----------------------------------------------------------------------------
# Going on


def refuse_other_run(out: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """UserError if the run in `out`, whose configuration is `before`, is not the one that `now` asks to
    resume, as far as an earlier version has recorded it."""
    changed = [key for key, value in now.items() if key not in RESUMABLE and before.get(key, value) != value]
    if changed:
        changes = ", ".join(f"{key} was {before.get(key)!r} and is now {now[key]!r}" for key in changed)
        raise UserError(
            f"cannot resume {out}: {changes}; give the files and flags that it began with, or start another "
            f"run from these weights (--init_from={out / 'last'} with a new --out_dir, without --resume)"
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
    if not (path / "optimizer.pt").is_file():
        raise UserError(
            f"{path} is a checkpoint without optimizer.pt, and {out} has no other to resume: give "
            "the run's `last` back, or start again in another --out_dir"
        )
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


def start_from(name: str, model: LanguageModel, config: dict[str, Any]) -> tuple[str, str | None]:
    """Copies into `model` every tensor of the same name and shape from another run or a GPT-2.

    (the words that say so, the digest of the weights of one of our runs). `config`: of the run that starts.
    UserError if they do not fit.
    """
    digest = None
    if checkpoint.is_run(name):
        ckpt = checkpoint.load(checkpoint.find(name))
        if ckpt.config["tokenizer_fingerprint"] != config["tokenizer_fingerprint"]:
            theirs = ckpt.config["tokenizer"]
            raise UserError(
                f"init_from = {name!r} has another tokenizer, {theirs}, than {config['tokenizer']}"
            )
        order, gain = ckpt.config.get("order", "left_to_right"), ckpt.config.get("gain", 1.0)
        shape = ckpt.config.get("trunk", "gpt"), ckpt.config["n_head"]
        weights, digest = ckpt.weights, checkpoint.weights_digest(ckpt.path)
    else:
        trunk = from_gpt2(name)
        ours = config["tokenizer"], config["tokenizer_fingerprint"], config["vocab_size"]
        if (theirs := vocabulary_of(trunk, *ours[:2])) != ours:
            raise UserError(
                f"init_from = {name!r} has another vocabulary ({theirs[0]}, {theirs[2]} tokens) than the "
                f"corpus ({ours[0]}, {ours[2]} tokens): prepare it with GPT-2's tokenizer"
            )
        shape, gain = ("gpt", trunk.config.n_head), 1.0
        order, weights = "left_to_right", {f"trunk.{k}": p.detach() for k, p in trunk.named_parameters()}
    if shape != (wanted := (config.get("trunk", "gpt"), config["n_head"])):  # which no tensor's shape tells
        raise UserError(
            f"init_from = {name!r} has the trunk and n_head {shape}, this configuration {wanted}: give those"
        )
    fixed = digest is not None and ckpt.config.get("sinusoidal", False)
    if reading(order) != reading(config["order"]) or fixed != config["sinusoidal"]:
        raise UserError(
            f"init_from = {name!r} reads in the order {order!r}, this configuration in {config['order']!r}; "
            f"sinusoidal is {fixed} there, {config['sinusoidal']} here: positions are encoded otherwise, "
            "start from a run of this kind"
        )
    parameters, wpe = dict(model.named_parameters()), weights.get("trunk.wpe.weight")
    if wpe is not None and len(wpe) > config["block_size"]:  # a longer block serves a shorter one
        weights["trunk.wpe.weight"] = wpe[: config["block_size"]]
    fits = {k for k, p in parameters.items() if k in weights and weights[k].shape == p.shape}
    fits.discard("head.log_gain")  # g starts at `gain`
    if any(k.startswith("trunk.") for k in parameters.keys() - fits):
        raise UserError(
            f"init_from = {name!r} has another size: give its n_layer, n_embd, block_size and vocabulary"
        )
    with torch.no_grad():
        for k in fits:
            parameters[k].copy_(weights[k])
    new, unused = (", ".join(sorted(keys)) for keys in (parameters.keys() - fits, weights.keys() - fits))
    before = weights["head.log_gain"].exp().item() if "head.log_gain" in weights else gain
    now = torch.as_tensor(model.head.gain).item()
    other = "" if math.isclose(before, now, rel_tol=1e-5) else f"; its gain was {before:.4g}, here {now:.4g}"
    kept = f"; as initialised: {new}" * bool(new) + f"; not used: {unused}" * bool(unused)
    return f"started from {name}{kept}{other}", digest
