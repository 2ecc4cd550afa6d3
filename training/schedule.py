"""How a run begins and goes on: its schedule, its seeds, its precision, weights to start from, and what a
resumed run may change."""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from common.config import Dtype
from common.device import DTYPES, Precision, choose_dtype
from common.errors import UserError
from heads import project
from model import LanguageModel
from training.distributed import Processes
from training.run import RESUMABLE, Run, RunConfig, difference, find_run, training_cost

if TYPE_CHECKING:
    from config.defaults import TrainConfig


def learning_rate(c: "TrainConfig", step: int) -> float:
    """Linear warm-up to learning_rate over warmup_steps, then a half cosine down to min_lr at
    lr_decay_steps."""
    end = c.lr_decay_steps or c.max_steps
    if step < c.warmup_steps:
        return c.learning_rate * (step + 1) / c.warmup_steps
    ratio = min(1.0, (step - c.warmup_steps) / max(1, end - c.warmup_steps))
    return c.min_lr + 0.5 * (1 + math.cos(math.pi * ratio)) * (c.learning_rate - c.min_lr)


def derived_seed(*parts: int) -> int:
    """One 62-bit seed from several numbers: randomness is a function of (seed, step, rank), so no generator
    state is saved."""
    out = 0
    for p in parts:
        out = (out * 0x5851F42D4C957F2D + p + 0x14057B7EF767814F) & (2**62 - 1)
    return out


def agreed_dtype(name: Dtype, begun: Dtype | None, procs: Processes) -> Precision:
    """`choose_dtype` of rank 0, by its own device, for all processes."""
    chosen = choose_dtype(name, procs.device, begun)
    return chosen._replace(name=DTYPES[procs.broadcast(DTYPES.index(chosen.name))])


# -----------------------------------------------------------------------------
# Going on


def refuse_other_run(last: Run, now: dict[str, Any]) -> None:
    """UserError if `last` is not of the run that `now` asks to resume, as far as an earlier version has
    recorded it. max_steps may be another where the cosine keeps its end, the names that its row has in tables
    may not."""
    end = "lr_decay_steps or max_steps"  # of the cosine
    before, now = ({**c, end: c["lr_decay_steps"] or c["max_steps"]} for c in (last.record, now))
    open_yet = {key for key, value in now.items() if value == "auto"}
    named = {key for key in ("row", "overlay") if before[key]}
    if changed := difference(before, now, but=RESUMABLE - named | {"lr_decay_steps"} | open_yet):
        raise UserError(
            f"cannot resume {last.path.parent}: it has another {changed}; "
            f"--resume {last.path.parent} alone goes on as it began"
        )


# -----------------------------------------------------------------------------
# Starting from other weights


def sized_as_start(c: "TrainConfig") -> "TrainConfig":
    """The configuration of a training that goes on with the model of another run: what `finetune` asks for.
    block_size is its own, and its trunk_args stand beside the other's. UserError without init_from."""
    if not c.init_from:
        raise UserError("finetune = True: give --init_from=RUN")
    run = Run(c.out_dir, "last") if c.resume else Run(find_run(c.init_from))
    own = run.path / "tokenizer.json"
    return replace(
        c,
        **{key: getattr(run.config, key) for key in ("trunk", "n_layer", "n_head", "n_embd", "tied")},
        trunk_args=run.config.trunk_args | c.trunk_args,
        tokenizer=str(own) if "-" in run.config.tokenizer else run.config.tokenizer,
        gain=run.config.gain if c.gain == 1 else c.gain,
    )


@torch.no_grad()
def lower_bias(model: LanguageModel, windows: Iterable[Tensor]) -> None:
    """Lowers the output bias by the mean of log sum_v exp(z_v) over some windows (T,): sigmoid(z_v), at the
    mean, is then what softmax gave the token. Nothing where the head has no bias."""
    head, bias = model.head, model.head.projection.bias
    if bias is None:
        return
    model.eval()
    hidden = [model.trunk(window[None])[0] for window in windows]
    logits = (project(h, head.projection.draw(), head.head, head.gain) for h in hidden)
    bias.sub_(torch.cat([z.logsumexp(1) for z in logits]).mean())
    model.train()


def refuse_other_tokens(key: str, name: str, config: RunConfig, tokenizer: str, digest: str) -> None:
    """UserError if the model `name`, of this configuration, has another tokenizer than the corpus, whose
    fingerprint is `digest`."""
    has = config.tokenizer_fingerprint
    if has != digest:
        raise UserError(
            f"{key} = {name!r} has another tokenizer ({config.tokenizer}, {has[:12]}) than the corpus "
            f"({tokenizer}, {digest[:12]})"
        )


def start_from(c: RunConfig, model: LanguageModel) -> str:
    """Copies into `model` every tensor of the same name and shape from the run `init_from`, and records in
    `c` what that was. The words that say so. UserError if they do not fit."""
    name = c.init_from
    run = Run(find_run(name))
    before, weights = run.config, run.weights()
    refuse_other_tokens("init_from", name, before, c.tokenizer, c.tokenizer_fingerprint)
    parameters, wpe = dict(model.named_parameters()), weights.get("trunk.wpe.weight")
    if wpe is not None and len(wpe) > c.block_size:  # a longer block serves a shorter one
        weights["trunk.wpe.weight"] = wpe[: c.block_size]
    elif wpe is not None and len(wpe) < c.block_size:
        raise UserError(f"init_from = {name!r} reads {len(wpe)} tokens: give --block_size={len(wpe)}")
    fits = {k for k, p in parameters.items() if k in weights and weights[k].shape == p.shape}
    fits.discard("head.log_gain")  # g starts at `gain`
    unlike = [
        k for k in parameters.keys() - fits | weights.keys() - model.tensors() if k.startswith("trunk.")
    ]
    # no tensor's shape tells the kind of trunk, and how many heads it has
    kinds = [(other.trunk, other.n_head) for other in (before, c)]
    if unlike or kinds[0] != kinds[1]:
        raise UserError(
            f"init_from = {name!r} has another size ({min(unlike, default=kinds[0])}): give its trunk, "
            "trunk_args, n_layer, n_head, n_embd, block_size and vocabulary"
        )
    with torch.no_grad():
        for k in fits:
            parameters[k].copy_(weights[k])
    new, unused = (", ".join(sorted(keys)) for keys in (parameters.keys() - fits, weights.keys() - fits))
    kept = f" | as in a new model: {new}" * bool(new) + f" | not used of it: {unused}" * bool(unused)
    c.init_weights, c.init_spent = run.weights_sha256, training_cost(run)
    return f"starts with the weights of {name}{kept}"
