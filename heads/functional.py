"""Any head's loss in place of F.cross_entropy(hidden @ weight.T, target), in chunks, and its distribution."""

import math
import sys
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .base import Head, Targets, check_choice
from .output import chunk_rows, chunked_loss, refuse_second_derivative
from .projection import Weights, project, scale_hidden, tell_scale

Reduction = Literal["mean", "sum", "none"]


def linear_loss(
    hidden: Tensor,
    weight: Tensor | nn.Module,
    target: Tensor | tuple[Tensor, Tensor],
    head: str | Any = "softmax",
    bias: Tensor | None = None,
    gain: Tensor | float = 1.0,
    reduction: Reduction = "mean",
    ignore_index: int = -100,
    token_weights: Tensor | None = None,
    stats: dict[str, Tensor] | None = None,
) -> Tensor:
    """head.loss(z, target) of the logits z = gain hidden W^T + b, without the (N, V) logits; in nats.

    hidden         (..., C)
    weight         W (V, C); or the layer that makes the logits, an nn.Linear with or without a LoRA of peft:
                   W, b and the LoRA are read from it, and get their gradients
    target         ids (...). Heads of several labels also take a pair (ids, values), each (..., K), each id
                   once in a row, padded with -1 at the end; values get no gradient
    head           a name in HEADS, made with its default arguments, or an object with `loss(logits (N, V),
                   Targets) -> (N,)`; "sampled_softmax" takes all tokens here
    bias           b (V,)
    reduction      "mean" is over the positions whose target, or first id, is not `ignore_index`: nan with a
                   gradient of 0 if there is none. "none" (...) computes the logits again in backward, the
                   others take their gradient in the forward pass
    token_weights  (...) what each position's loss is multiplied by; "mean" divides by their sum. They get no
                   gradient
    stats          gets "entropy" (...), in nats, and "argmax" (...) of the head's distribution, out of the
                   same logits; 0 and -1 where a position has no loss

    The loss is float32, or float64 like hidden; autocast lowers the matrix products alone.
    ValueError for an unknown head or reduction, for a head of another V, for shapes and targets that do not
    fit, for a layer that does more than W h + b. RuntimeError for a second derivative.
    """
    if torch.compiler.is_compiling():  # the graph breaks here: threads do the work, which torch cannot trace
        eager: Any = torch.compiler.disable(linear_loss)
        return eager(hidden, weight, target, head, bias, gain, reduction, ignore_index, token_weights, stats)
    check_choice(("mean", "sum", "none"), reduction=reduction)
    layer = as_layer(weight, bias, hidden)
    head, shape = as_head(head, len(layer.weight)), hidden.shape[:-1]
    targets = as_targets(target, shape, head, ignore_index)
    if token_weights is not None:
        if token_weights.shape != shape:
            raise ValueError(f"token_weights {tuple(token_weights.shape)}: give {tuple(shape)}, as hidden")
        targets = targets._replace(weights=token_weights.detach().reshape(-1))
    targets, hidden = targets.kept(), hidden.reshape(-1, hidden.shape[-1])
    if targets.rows is not None:
        hidden = hidden[targets.rows]
    hidden, weights, head, gain, added = factors(hidden, layer, head, gain)

    def in_place(values: Tensor, fill: int = 0) -> Tensor:
        """(...) of the values (N,) of the positions with a loss; `fill` at the others."""
        if targets.rows is not None:
            values = values.new_full((shape.numel(),), fill).index_copy(0, targets.rows, values)
        return values.view(shape)

    look = None
    if stats is not None:
        entropy = hidden.new_empty(len(hidden), dtype=torch.promote_types(hidden.dtype, torch.float32))
        argmax = torch.empty(len(hidden), dtype=torch.long, device=hidden.device)

        @torch.no_grad()
        def look(start: int, logits: Tensor) -> None:
            log_p, rows = head.log_probs(logits), slice(start, start + len(logits))
            entropy[rows], argmax[rows] = torch.special.entr(log_p.exp()).sum(1), log_p.argmax(1)

    if reduction == "none":
        loss = in_place(checkpointed_losses(hidden, weights, head, targets, gain, added, look))
    else:
        loss = chunked_loss(hidden, weights, head, targets, gain=gain, added=added, look=look)
    if reduction == "mean":
        count = len(hidden) if targets.weights is None else targets.weights.sum(dtype=loss.dtype)
        loss = loss / count if len(hidden) else loss + math.nan
    if stats is not None:
        stats.update(entropy=in_place(entropy), argmax=in_place(argmax, -1))
    return loss


@torch.no_grad()
def log_probs(
    hidden: Tensor,
    weight: Tensor | nn.Module,
    head: str | Any = "softmax",
    bias: Tensor | None = None,
    gain: Tensor | float = 1.0,
) -> Tensor:
    """log p (..., V) of the head's distribution, all at once, without a gradient; else as `linear_loss`."""
    layer = as_layer(weight, bias, hidden)
    head = as_head(head, len(layer.weight))
    logits = project(*factors(hidden.reshape(-1, hidden.shape[-1]), layer, head, gain))
    with torch.autocast(hidden.device.type, enabled=False):
        return head.log_probs(logits).view(*hidden.shape[:-1], head.vocab_size)


def checkpointed_losses(
    hidden: Tensor,
    weights: Weights,
    head: Head,
    targets: Targets,
    gain: Tensor | float,
    added: tuple[Tensor, Tensor] | None,
    look: Callable[[int, Tensor], None] | None,
) -> Tensor:
    """The losses (N,) of hidden (N, C), a chunk at a time; backward makes the logits of each chunk again."""

    def chunk(start: int, end: int) -> Tensor:
        x = None if added is None else (added[0][start:end], added[1])
        logits = project(hidden[start:end], weights, head, gain, x)
        if not len(logits):
            return logits.sum(1)
        with torch.autocast(hidden.device.type, enabled=False):
            if look is not None:
                look(start, logits.detach().clone())
            part = targets.part(start, end)
            loss = head.loss(logits, part)
            return loss if part.weights is None else loss * part.weights

    rows = chunk_rows(head.vocab_size, hidden.device.type)
    parts = range(0, max(1, len(hidden)), rows)  # at least one, so that the result depends on the inputs
    each = torch.cat([checkpoint(chunk, i, i + rows, use_reentrant=False) for i in parts])
    if each.requires_grad:
        each.register_hook(refuse_second_derivative)
    return each


# -----------------------------------------------------------------------------
# The layer that makes logits


class LoRA(NamedTuple):
    """scale B A is added to the weight. Source: Hu et al. 2021, arXiv 2106.09685, sec. 4.1."""

    a: Tensor  # (r, C)
    b: Tensor  # (V, r)
    scale: float
    dropout: nn.Module  # of what A multiplies


class Layer(NamedTuple):
    """z = h W^T + b, with W = `weight` and what is added to it."""

    weight: Tensor
    bias: Tensor | None
    loras: list[LoRA]


def as_layer(weight: Tensor | nn.Module, bias: Tensor | None, hidden: Tensor) -> Layer:
    """The layer of a weight, or of a module that has one; ValueError for shapes that do not fit `hidden`."""
    if isinstance(weight, nn.Module):
        if bias is not None:
            raise ValueError("bias: the layer has its own; give its weight, if you mean another")
        layer = read_layer(weight)
    else:
        layer = Layer(weight, bias, [])
    C, size = hidden.shape[-1], tuple(layer.weight.shape)
    if len(size) != 2 or size[1] != C:
        turned = f": {size} looks transposed" if len(size) == 2 and size[0] == C else ""
        raise ValueError(f"weight {size}: hidden states {tuple(hidden.shape)} need (V, {C}){turned}")
    return layer


def read_layer(module: Any) -> Layer:
    """What a layer multiplies hidden states with. ValueError, with its name, for one that computes anything
    else: quantised, sharded, with hooks, with another adapter than a plain LoRA."""
    lora, other = (sys.modules.get(f"peft.{name}") for name in ("tuners.lora.layer", "utils.other"))
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    if any(getattr(m, name) for m in module.modules() for name in hooks):
        raise ValueError(f"{type(module).__name__} has hooks, whose work linear_loss cannot see: remove them")
    if other is not None and isinstance(module, other.ModulesToSaveWrapper):
        active = [] if module.disable_adapters else module.active_adapters
        module = module.modules_to_save[active[0]] if active else module.original_module
    loras = []
    if lora is not None and type(module) is lora.Linear:
        layer, module = module, module.base_layer
        if layer.disable_adapters and layer.merged:
            raise ValueError("the LoRA is disabled and merged: unmerge it first")
        off = layer.disable_adapters or layer.merged
        for name in [] if off else [name for name in layer.active_adapters if name in layer.lora_A]:
            a, b, variants = layer.lora_A[name], layer.lora_B[name], getattr(layer, "lora_variant", {})
            if name in variants or layer.use_dora.get(name) or b.bias is not None:
                raise ValueError(f"the LoRA {name!r} is a variant (DoRA, or with a bias): use a plain LoRA")
            loras.append(LoRA(a.weight, b.weight, layer.scaling[name], layer.lora_dropout[name]))
    plain = type(module).forward is nn.Linear.forward and "forward" not in vars(module)
    weight: Any = module.weight if plain else None
    if type(weight) not in (Tensor, nn.Parameter) or not weight.is_floating_point():
        what = type(module) if weight is None else type(weight)
        raise ValueError(
            f"{what.__module__}.{what.__qualname__}: linear_loss reads an nn.Linear with a plain weight, or "
            "a LoRA of peft on one; of another layer give the weight (V, C) and the bias"
        )
    return Layer(weight, module.bias, loras)


def factors(
    hidden: Tensor, layer: Layer, head: Head, gain: Tensor | float
) -> tuple[Tensor, Weights, Head, Tensor | float, tuple[Tensor, Tensor] | None]:
    """The arguments of `project`. A LoRA costs two thin products, never a (V, C): except under a cosine head,
    which needs the lengths of the whole rows."""
    tell_scale(head, gain, hidden.shape[-1])
    weight, bias, loras = layer
    if not loras:
        return hidden, Weights(weight, bias), head, gain, None
    if head.cosine:
        if any(lora.dropout.training and getattr(lora.dropout, "p", 0) for lora in loras):
            raise ValueError(f"{type(head).__name__} takes lengths of weights: set lora_dropout = 0")
        whole = weight + sum(lora.scale * (lora.b @ lora.a) for lora in loras)
        return hidden, Weights(whole, bias), head, gain, None
    hidden = scale_hidden(hidden, head, gain)
    thin = [lora.dropout(hidden.to(lora.a.dtype)) @ (lora.scale * lora.a).t() for lora in loras]
    added = torch.cat(thin, 1), torch.cat([lora.b for lora in loras], 1)
    return hidden, Weights(weight, bias), head, 1.0, added


# -----------------------------------------------------------------------------
# The head and the targets


class _Wrapped(Head):
    """Any object with `loss` as a Head. If it is a module, its parameters are trained."""

    def __init__(self, vocab_size: int, wrapped: Any):
        super().__init__(vocab_size)
        self.wrapped, self.multi_label = wrapped, getattr(wrapped, "multi_label", False)

    def loss(self, logits: Tensor, targets: Targets) -> Tensor:
        loss = self.wrapped.loss(logits, targets)
        if loss.shape != logits.shape[:1]:
            name, n = type(self.wrapped).__name__, len(logits)
            raise ValueError(f"{name}.loss returns {tuple(loss.shape)} for {n} rows: it has to return ({n},)")
        return loss

    def log_probs(self, logits: Tensor) -> Tensor:
        return self.wrapped.log_probs(logits)


def as_head(head: Any, vocab_size: int) -> Head:
    """A Head from a name, a Head, or any object with `loss`. ValueError for one of another V."""
    if isinstance(head, str):
        from . import named_head  # here, because heads/__init__.py imports this file

        return named_head(head, vocab_size)
    if not any(
        base.__name__ == "Head" and base.__module__.endswith("heads.base") for base in type(head).__mro__
    ):
        return _Wrapped(vocab_size, head)  # in a checkout `heads` and `nanoheads.heads` have a Head each
    check_choice((vocab_size,), vocab_size_of_head=head.vocab_size)
    return head


def as_targets(
    target: Tensor | tuple[Tensor, Tensor], shape: torch.Size, head: Head, ignore_index: int
) -> Targets:
    """The `target` of `linear_loss` as Targets (N, K), -1 where there is no label. `shape` is that of the
    positions (...). ValueError for ids and values that do not fit."""
    several = head.multi_label or type(head).targets is not Head.targets
    pair = not isinstance(target, Tensor)
    if isinstance(target, Tensor):
        ids, values = target[..., None], torch.ones(*target.shape, 1, device=target.device)
    else:
        ids, values = target
    fit = ids.shape == values.shape == (*shape, ids.shape[-1])
    if not fit or ids.is_floating_point() or (pair and not several):
        raise ValueError(
            f"target {tuple(ids.shape if pair else ids.shape[:-1])}: give ids {tuple(shape)}, one for each "
            "hidden state (hidden[:, :-1] predicts ids[:, 1:]), or a pair (ids, values) to a head of several"
        )
    ids, values = (t.reshape(-1, ids.shape[-1]) for t in (ids.long(), values.detach()))
    absent = (ids[:, :1] == ignore_index) | (ids == -1) & pair
    ids, values = ids.masked_fill(absent, -1), values.masked_fill(absent, 0)
    ordered = ids.sort(1).values
    twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
    beyond = ~absent & ((ids < 0) | (ids >= head.vocab_size))
    lowest = 0 if head.multi_label else -1  # a head of labels of its own may have tokens to avoid
    wrong = ~((values >= lowest) & (values <= 1)) | ((ids[:, :1] < 0) & (ids >= 0))
    if beyond.any() or twice.any() or wrong.any():
        raise ValueError(
            f"target: give ids from 0 to {head.vocab_size - 1}, each once in a row, then padding, and "
            f"label values from {lowest} to 1"
        )
    return Targets(ids, values)
