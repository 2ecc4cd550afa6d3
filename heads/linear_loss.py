"""Any head's loss in place of F.cross_entropy(hidden @ weight.T, target), in chunks, and its distribution."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .base import Head, Targets
from .output import chunk_rows, chunked_loss, refuse_second_derivative
from .projection import Weights, project


def linear_loss(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor | tuple[Tensor, Tensor],
    head: str | Any = "softmax",
    bias: Tensor | None = None,
    gain: Tensor | float = 1.0,
    reduction: str = "mean",
    ignore_index: int = -100,
) -> Tensor:
    """head.loss(z, target) of the logits z = gain hidden W^T + b, without the (N, V) logits; in nats.

    hidden (..., C), weight (V, C), bias (V,), target (...) ids. Heads of several labels also take a pair
    (ids, values), each (..., K), the ids padded with -1 at the end; values get no gradient. `head` is a name
    in HEADS, for its default arguments, or an object with `loss(logits (N, V), Targets) -> (N,)`.
    "mean" is over the positions whose target, or first id, is not `ignore_index`: nan with a gradient of 0 if
    there is none. "none" (...) computes the logits again in backward, the others take their gradient in the
    forward pass. The loss is float32, or float64 like hidden; autocast lowers the matrix products alone.
    ValueError for shapes that do not fit, an id outside of 0 to V - 1, an unknown head or reduction.
    RuntimeError for a second derivative.
    """
    if torch.compiler.is_compiling():  # the compiled graph ends here and goes on behind: threads do the work
        eager = torch.compiler.disable(linear_loss)
        return eager(hidden, weight, target, head, bias, gain, reduction, ignore_index)
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction = {reduction!r}: use 'mean', 'sum' or 'none'")
    head = _head(head, hidden, weight, bias)
    targets = _targets(target, hidden, head, ignore_index).kept()
    shape, hidden, weights = hidden.shape[:-1], hidden.reshape(-1, hidden.shape[-1]), Weights(weight, bias)
    if targets.rows is not None:
        hidden = hidden[targets.rows]
    if reduction != "none":
        total, count = chunked_loss(hidden, weights, head, targets, gain=gain), len(hidden)
        return total if reduction == "sum" else total / count if count else total + math.nan

    def losses(start: int, end: int) -> Tensor:
        logits = project(hidden[start:end], weights, head, gain)
        with torch.autocast(hidden.device.type, enabled=False):
            return head.loss(logits, targets.part(start, end)) if len(logits) else logits.sum(1)

    rows = chunk_rows(head.vocab_size, hidden.device.type)
    parts = range(0, max(1, len(hidden)), rows)  # one without rows still joins the inputs to the result
    each = torch.cat([checkpoint(losses, i, i + rows, use_reentrant=False) for i in parts])
    if each.requires_grad:
        each.register_hook(refuse_second_derivative)
    if targets.rows is not None:
        each = each.new_zeros(shape.numel()).index_copy(0, targets.rows, each)
    return each.view(shape)


@torch.no_grad()
def log_probs(
    hidden: Tensor,
    weight: Tensor,
    head: str | Any = "softmax",
    bias: Tensor | None = None,
    gain: Tensor | float = 1.0,
) -> Tensor:
    """log p (..., V) of the head's distribution, all at once, without a gradient; else as `linear_loss`."""
    head = _head(head, hidden, weight, bias)
    logits = project(hidden.reshape(-1, hidden.shape[-1]), Weights(weight, bias), head, gain)
    with torch.autocast(hidden.device.type, enabled=False):
        return head.log_probs(logits).view(*hidden.shape[:-1], head.vocab_size)


class _Wrapped(Head):
    """Any object with `loss` as a Head; the parameters of a module learn."""

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


def _head(head: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Head:
    """The head, once the shapes of its inputs are checked."""
    shapes = f"hidden {tuple(hidden.shape)}, weight {tuple(weight.shape)}"
    if weight.ndim != 2 or hidden.shape[-1:] != weight.shape[1:]:
        raise ValueError(f"{shapes}: give (..., C) and (V, C)")
    if not all(t.is_floating_point() for t in (hidden, weight, *([] if bias is None else [bias]))):
        raise ValueError(f"hidden of {hidden.dtype}, weight of {weight.dtype}: give floating-point numbers")
    V = len(weight)
    if bias is not None and bias.shape != (V,):
        raise ValueError(f"{shapes}, bias {tuple(bias.shape)}: give a bias of ({V},)")
    if isinstance(head, str):
        from . import named_head  # here, because heads/__init__.py imports this file

        return named_head(head, V)
    if isinstance(head, type) or not hasattr(head, "loss"):
        raise ValueError(f"head = {head!r}: give a name in HEADS or an instance with loss(logits, targets)")
    if not isinstance(head, Head):
        return _Wrapped(V, head)
    if head.vocab_size != V:
        raise ValueError(f"{shapes}: the head has vocab_size = {head.vocab_size}, not {V}")
    return head


def _targets(
    target: Tensor | tuple[Tensor, Tensor], hidden: Tensor, head: Head, ignore_index: int
) -> Targets:
    """`target` as Targets, with the id -1 where there is no label."""
    shape, V, pair = tuple(hidden.shape[:-1]), head.vocab_size, not isinstance(target, Tensor)
    ids, values = (target, None) if isinstance(target, Tensor) else target
    if pair:
        if not head.multi_label and type(head).targets is Head.targets:
            raise ValueError(
                "target is a pair (ids, values), and this head reads one id a position: give the ids alone"
            )
        shape = (*shape, *ids.shape[-1:])
    given = [t for t in (ids, values) if t is not None]
    if type(ignore_index) is not int:
        raise ValueError(f"ignore_index = {ignore_index!r}: give a whole number")
    whole = not (ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool)
    if not whole or any(t.shape != shape for t in given):
        shown = ", ".join(f"{tuple(t.shape)} of {t.dtype}" for t in given)
        raise ValueError(f"target {shown} for hidden {tuple(hidden.shape)}: give ids {shape}")
    ids = ids.long()
    absent = (ids == -1) | (ids[..., :1] == ignore_index) if pair else ids == ignore_index
    wrong = ids[~absent & ((ids < 0) | (ids >= V))]
    if len(wrong):
        raise ValueError(f"target has the id {wrong[0]}: give ids from 0 to {V - 1}")
    ids = ids.masked_fill(absent, -1)
    if values is None:
        return Targets.single(ids)
    if ((ids[..., :1] < 0) & (ids >= 0)).any():
        raise ValueError("target has labels behind padding: put the ids -1 at the end of a row")
    ordered = ids.sort(-1).values
    if ((ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)).any():
        raise ValueError("target has an id twice in a row: add up its values")
    lowest = 0 if head.multi_label else -1  # a head of labels of its own may have tokens to avoid
    if not ((ids < 0) | ((values >= lowest) & (values <= 1))).all():
        raise ValueError(f"target has label values beyond {lowest} and 1")
    K = shape[-1]
    return Targets(ids.reshape(-1, K), values.detach().masked_fill(ids < 0, 0).reshape(-1, K))
