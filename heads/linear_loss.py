"""Any head's loss in place of F.cross_entropy(hidden @ weight.T, target), in chunks, and its distribution."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .base import Head, Targets, check_choice
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
    (ids, values), each (..., K), each id once in a row, padded with -1 at the end; values get no gradient.
    `head` is a name in HEADS, for its default arguments, or an object with `loss(logits (N, V), Targets) ->
    (N,)`; "sampled_softmax" takes all tokens here. "mean" is over the positions whose target, or first id, is
    not `ignore_index`: nan with a gradient of 0 if there is none. "none" (...) computes the logits again in
    backward, the others take their gradient in the forward pass. The loss is float32, or float64 like hidden;
    autocast lowers the matrix products alone.
    ValueError for an unknown head or reduction, for a head of another V, for targets that do not fit.
    RuntimeError for a second derivative.
    """
    if torch.compiler.is_compiling():  # the compiled graph ends here and goes on behind: threads do the work
        eager = torch.compiler.disable(linear_loss)
        return eager(hidden, weight, target, head, bias, gain, reduction, ignore_index)
    check_choice(("mean", "sum", "none"), reduction=reduction)
    head = as_head(head, len(weight))
    targets = as_targets(target, hidden.shape[:-1], head, ignore_index).kept()
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
    head = as_head(head, len(weight))
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


def as_head(head: Any, vocab_size: int) -> Head:
    """The head of a name, or of any object with `loss`."""
    if isinstance(head, str):
        from . import named_head  # here, because heads/__init__.py imports this file

        return named_head(head, vocab_size)
    if not isinstance(head, Head):
        return _Wrapped(vocab_size, head)
    check_choice((vocab_size,), vocab_size_of_head=head.vocab_size)
    return head


def as_targets(
    target: Tensor | tuple[Tensor, Tensor], shape: torch.Size, head: Head, ignore_index: int
) -> Targets:
    """`target` of positions (...) = `shape` as Targets, with the id -1 where there is no label."""
    pair, several = True, head.multi_label or type(head).targets is not Head.targets
    if isinstance(target, Tensor):
        pair, target = False, (target[..., None], torch.ones_like(target[..., None], dtype=torch.float32))
    ids, values = target
    fit = ids.shape == values.shape == (*shape, ids.shape[-1])
    if not fit or ids.is_floating_point() or (pair and not several):
        raise ValueError(f"target {tuple(ids.shape)}: give ids {tuple(shape)}, labels to a head of several")
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
