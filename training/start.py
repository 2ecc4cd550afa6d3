"""Starting from other weights: what init_from, finetune and partition_bias ask for."""

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from common.errors import UserError
from config.defaults import TrainConfig
from heads import project
from model import LanguageModel
from training.run import Run, RunConfig, find_run, training_cost


def sized_as_start(c: TrainConfig) -> TrainConfig:
    """`c` with the trunk, sizes, tokenizer, `tied` and gain of the run that it starts from: `finetune`. c
    keeps its block_size, and its trunk_args are added to the other's. UserError without init_from."""
    if not c.init_from:
        raise UserError("finetune = True: give --init_from=RUN")
    run = Run(c.out_dir, "last") if c.resume else Run(find_run(c.init_from))
    if run.config.tied and not c.tied:
        raise UserError("tied = False: --finetune keeps the start's readout, which is its embedding")
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
    `c` that run's weights and cost. Returns a line about it for the user. UserError if the trunks differ."""
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
    # no tensor's shape tells the kind of trunk, or its number of attention heads
    kinds = [(other.trunk, other.n_head) for other in (before, c)]
    if unlike or kinds[0] != kinds[1]:
        raise UserError(
            f"init_from = {name!r} has another size ({min(unlike, default=kinds[0])}): --finetune takes its "
            "trunk and sizes, as config/finetune.py does"
        )
    with torch.no_grad():
        for k in fits:
            parameters[k].copy_(weights[k])
    new, unused = (", ".join(sorted(keys)) for keys in (parameters.keys() - fits, weights.keys() - fits))
    if before.head == "softcap" and c.head != "softcap":
        unused = f"the cap of its logits, {before.head_args['cap']}" + f", {unused}" * bool(unused)
    kept = f" | as in a new model: {new}" * bool(new) + f" | not used of it: {unused}" * bool(unused)
    c.init_weights, c.init_spent = run.weights_sha256, training_cost(run)
    return f"starts with the weights of {name}{kept}"
