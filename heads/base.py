"""What a head is, its labels, and the cross-entropy that most heads share."""

import difflib
import functools
import inspect
import math
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import torch
import torch.nn as nn
from torch import Tensor


class Targets(NamedTuple):
    """Sparse labels of N positions.

    ids     (N, K) token ids, each once in a row, padded with -1; column 0 is the true next token. A -1 there
            means that the position has no loss
    values  (N, K) label values y in [0, 1]; below 0 for tokens to avoid, where a head asks for them
            (`Head.targets`)
    rows    (N,) which of the B * T positions these are; None: all of them, in order
    weights (N,) what the loss of each is multiplied by; None: 1

    Any integer and floating-point types will do: int32 and float16 take half the bytes. A head is given
    int64 and float32 (see `part`), and no position without a loss (see `kept`).
    """

    ids: Tensor
    values: Tensor
    rows: Tensor | None = None
    weights: Tensor | None = None

    @classmethod
    def single(cls, token: Tensor) -> "Targets":
        """The true token alone. `token` has any shape; it is flattened to (N, 1)."""
        ids = token.reshape(-1, 1)
        return cls(ids, torch.ones_like(ids, dtype=torch.float32))

    @property
    def token(self) -> Tensor:
        """The true next token (N,)."""
        return self.ids[:, 0]

    def kept(self, scored: Tensor | None = None) -> "Targets":
        """The targets of the positions that have a loss and, if given, are `scored` (N bools, any shape)."""
        has_loss = self.token >= 0
        if scored is not None:
            has_loss = has_loss & scored.flatten().to(has_loss.device)
        if has_loss.all():
            return self
        at = has_loss.nonzero().squeeze(1)
        rows = at if self.rows is None else self.rows[at]
        weights = None if self.weights is None else self.weights[at]
        return Targets(self.ids[at], self.values[at], rows, weights)

    def part(self, start: int, end: int) -> "Targets":
        """Rows `start` to `end`, as int64 and float32 (float64 stays): what a head is given."""
        values = self.values[start:end]
        return Targets(
            self.ids[start:end].long(),
            values.to(torch.promote_types(values.dtype, torch.float32)),
            weights=None if self.weights is None else self.weights[start:end],
        )

    def moved(self, move: Callable[[Tensor], Tensor]) -> "Targets":
        """`move` of each tensor: to another device, or to pinned memory."""
        rows, weights = (None if t is None else move(t) for t in (self.rows, self.weights))
        return Targets(move(self.ids), move(self.values), rows, weights)


# What `Head.gradient` returns: the losses (N,); their gradient in the logits (N, V), right but at the labels'
# ids; and there (N, K'), of the first K' ids
Gradient = tuple[Tensor, Tensor, Tensor]


class Head(nn.Module):
    """Base of all heads: a subclass gives `log_probs`, and `loss` or `gradient` or both. Its parameters, if
    any, are trained.

    `vocab_size` is V, without padding.
    """

    multi_label = False  # reads all of Targets, not the true token alone
    bias: float | None = None  # initial value of the projection's output bias; None: the projection has none
    cosine = False  # its logits are s cos(h, w_v) instead of h w_v, with s = sqrt(C) times the gain
    reads_scale = False  # p depends on s beside the logits, so a gain cannot be learned through them alone
    scale = 30.0  # that s, where `reads_scale`: whoever makes the logits sets it, once
    sparse = False  # may give a token probability 0: log_probs has -inf there
    # Optional: gradient(logits (N, V), targets) -> Gradient. It may overwrite the logits. On a CPU it takes
    # half of autograd's time; on a GPU it is compiled whole, unless `compiles` is False
    gradient: Any = None
    compiles = True

    def __init__(self, vocab_size: int):
        super().__init__()
        self.vocab_size = vocab_size

    def __init_subclass__(cls, **args: Any) -> None:
        """A class with a loss or link (see Softmax) of its own does not inherit the gradient of another."""
        super().__init_subclass__(**args)
        if {"loss", "link"} & vars(cls).keys() and "gradient" not in vars(cls):
            cls.gradient = None

    def targets(self, x: Tensor, y: Tensor) -> Targets:
        """Labels of B * T positions without a teacher, from the inputs x and the next tokens y (B, T)."""
        return Targets.single(y)

    def loss(self, logits: Tensor, targets: Targets) -> Tensor:
        """(N, V) float32 logits -> (N,) what training minimises, in nats. A logit of -inf is a banned token,
        which the loss leaves out. By default the loss of `gradient`."""
        return closed_loss(logits, self, targets)

    def log_probs(self, logits: Tensor) -> Tensor:
        """(N, V) float32 logits -> (N, V) log of the normalised distribution; -inf for a logit of -inf."""
        raise NotImplementedError


def with_gradient(f: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., Tensor]:
    """Makes a differentiable loss(z, ...) of f(z, ...) -> (loss (N,), its gradient in z (N, V)).

    For a gradient that autograd would compute in more passes over (N, V), or with larger errors. f may
    overwrite z, which is a copy.
    """

    class Loss(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, z: Tensor, *args: Any) -> Tensor:
            loss, gradient = f(z.clone(), *args)
            ctx.save_for_backward(gradient)
            ctx.others = len(args)
            return loss

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
            (gradient,) = ctx.saved_tensors
            return gradient * grad[:, None], *[None] * ctx.others

    return functools.wraps(f)(lambda z, *args: Loss.apply(z, *args))


@with_gradient
def closed_loss(z: Tensor, head: Head, targets: Targets) -> tuple[Tensor, Tensor]:
    """The losses (N,) of a head's `gradient`, and that gradient (N, V), right at the labels, too."""
    loss, gradient, at_ids = head.gradient(z, targets)
    return loss, gradient.scatter_(1, *at_labels(targets.ids, at_ids))


def at_labels(ids: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """The first K' of the labels' ids (N, K), and their values (N, K'). Padding repeats the first label."""
    ids = ids[:, : values.shape[1]]
    padding = ids < 0
    return torch.where(padding, ids[:, :1], ids), torch.where(padding, values[:, :1], values)


# -----------------------------------------------------------------------------
# What heads share


@with_gradient
def cross_entropy(u: Tensor, token: Tensor, rest: float = 0.0) -> tuple[Tensor, Tensor]:
    """-sum_v y_v log softmax(u)_v (N,) of scores u (N, V).

    The label y_v is `rest` for each token v but the true one, t of `token` (N,), whose label is
    1 - (V - 1) `rest`. A banned token (u = -inf) has the label 0, and t has its `rest`, too.
    """
    loss, gradient, at_token = cross_entropy_parts(u, token, rest)
    return loss, gradient.scatter_(1, token[:, None], at_token)


def cross_entropy_parts(u: Tensor, token: Tensor, rest: float = 0.0) -> Gradient:
    """`cross_entropy` and its gradient softmax(u) - y, which takes u's place; of the labels t alone."""
    V, u_t, top = u.shape[1], at(u, token), u.amax(1, keepdim=True)
    if rest:
        banned = u == -math.inf  # their labels are t's
        smooth = rest * (u.masked_fill(banned, 0).sum(1) + banned.sum(1) * u_t)
    # not torch.softmax: it takes a CPU three times as long as exp, and it does not return the sum
    p = u.sub_(top).exp_()
    total = p.sum(1, keepdim=True)
    p *= total.reciprocal()
    loss = (top + total.log()).squeeze(1) - (1 - rest * V) * u_t
    at_token = at(p, token) - 1
    if rest:
        loss, at_token = loss - smooth, (at(p, token) - rest) + (rest * V - 1) - rest * banned.sum(1)
        p.sub_(rest).masked_fill_(banned, 0)
    return loss, p, at_token[:, None]


def at(z: Tensor, token: Tensor) -> Tensor:
    """z_t (N,) of z (N, V) and t (N,)."""
    return z.gather(1, token[:, None]).squeeze(1)


def add_at(z: Tensor, token: Tensor, value: Tensor | float) -> Tensor:
    """z_t += value, in place; returns z (N, V)."""
    z[torch.arange(len(z), device=z.device), token] += value
    return z


# -----------------------------------------------------------------------------
# Arguments


def check_range(interval: str, **values: float) -> None:
    """ValueError naming an argument outside of an interval such as "(0, inf)" or "[0, 1)"."""
    low, high = (float(end) for end in interval[1:-1].split(","))
    for name, value in values.items():
        inside = low < value < high
        if not (inside or (value == low and interval[0] == "[") or (value == high and interval[-1] == "]")):
            raise ValueError(f"{name} = {value}: must be in {interval}")


def check_choice(choices: Collection[Any], **values: Any) -> None:
    """ValueError naming an argument that is none of `choices`."""
    for name, value in values.items():
        if value not in choices:
            near = difflib.get_close_matches(str(value), map(str, choices), 1)
            use = f"did you mean {near[0]}?" if near else f"use one of {', '.join(map(repr, choices))}"
            raise ValueError(f"{name} = {value!r}: {use}")


def check_arguments(cls: type, args: dict[str, Any]) -> None:
    """ValueError naming those of `args` that the class cannot be made with, beside its first argument: keys
    that it does not take, values of another type than is declared there."""
    signature = inspect.signature(cls)
    try:
        signature.bind(None, **args)
        for key, value in args.items():
            parameter = signature.parameters.get(key)
            kind = parameter.annotation if parameter else None  # of a class of your own perhaps none
            if kind in (bool, int, float, str, dict | None) and not is_a(value, kind):
                raise TypeError(f"{key} = {value!r} must be of type {getattr(kind, '__name__', kind)}")
    except TypeError as error:
        raise ValueError(f"{cls.__name__} does not take {args}: {error}") from None


def is_a(value: Any, kind: Any) -> bool:
    """Whether a value is of a type; a whole number is a float, and True is no number."""
    numbers = {float: (int, float)}
    return isinstance(value, numbers.get(kind, kind)) and (kind is bool or type(value) is not bool)
