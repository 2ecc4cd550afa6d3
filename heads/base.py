"""What a head is, its labels, and the cross-entropy that most heads share."""

import functools
from typing import Callable, NamedTuple

import torch
import torch.nn as nn
from torch import Tensor


class Targets(NamedTuple):
    """Sparse labels of N positions: `ids` (N, K), padded with -1, the true next token in column 0; `values` (N, K), their label values y in [0, 1].

    A head that asks for them (`Head.targets`) gets tokens to avoid as well, with values below 0.
    """
    ids: Tensor
    values: Tensor

    @classmethod
    def single(cls, token: Tensor) -> "Targets":
        """The true token alone. `token` has any shape; it is flattened to (N, 1)."""
        ids = token.reshape(-1, 1)
        return cls(ids, torch.ones_like(ids, dtype=torch.float32))

    @property
    def token(self) -> Tensor:
        """The true next token (N,)."""
        return self.ids[:, 0]

    def rows(self, start: int, end: int) -> "Targets":
        return Targets(self.ids[start:end], self.values[start:end])


class Head(nn.Module):
    """Base of all heads; its parameters, if any, are trained. `vocab_size` is V."""
    multi_label = False        # reads all of Targets, not the true token alone
    bias: float | None = None  # initial value of the projection's output bias; None: the projection has none
    cosine = False             # its logits are cos(h, w_v) instead of h w_v (the bias, if any, is added to them)
    sparse = False             # may give a token probability 0: log_probs has -inf there

    def __init__(self, vocab_size: int):
        super().__init__()
        self.vocab_size = vocab_size

    def targets(self, x: Tensor, y: Tensor) -> Targets:
        """Labels of B * T positions without a teacher, from the inputs x and the next tokens y (B, T)."""
        return Targets.single(y)

    def loss(self, logits: Tensor, targets: Targets) -> Tensor:
        """(N, V) float32 logits -> (N,) what training minimises, in nats."""
        raise NotImplementedError

    def log_probs(self, logits: Tensor) -> Tensor:
        """(N, V) float32 logits -> (N, V) log of the normalised distribution."""
        raise NotImplementedError


def finds_gradient(f: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., Tensor]:
    """Makes of f(z, ...) -> (loss (N,), its gradient in z (N, V)) a differentiable loss(z, ...): what plain PyTorch computes, in fewer passes
    over (N, V). The gradient may also be another one than the loss's, where that is the definition (`TaylorInf`)."""
    class Loss(torch.autograd.Function):
        @staticmethod
        def forward(ctx, z, *args):
            loss, grad = f(z, *args)
            ctx.save_for_backward(grad)
            ctx.others = len(args)
            return loss

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, grad):
            return ctx.saved_tensors[0] * grad[:, None], *[None] * ctx.others

    return functools.wraps(f)(lambda z, *args: Loss.apply(z, *args))


@finds_gradient
def cross_entropy(u: Tensor, token: Tensor, rest: float = 0.0) -> Tensor:
    """-sum_v y_v log softmax(u)_v (N,) of scores u (N, V), with y_v = `rest` everywhere but at the tokens t (N,), where it is what is left to 1.

    Its gradient is softmax(u) - y.
    """
    p, V = torch.softmax(u, dim=1), u.shape[1]
    lse = u.amax(1) - p.amax(1).log()  # log p_j = u_j - lse for any j; the largest p_j is at least 1/V, so its log is exact
    loss = lse - (1 - rest * V) * at(u, token)
    if rest:
        loss, p = loss - rest * u.sum(1), p.sub_(rest)
    return loss, add_at(p, token, rest * V - 1)


def at(z: Tensor, token: Tensor) -> Tensor:
    """z_t (N,) of z (N, V) and t (N,)."""
    return z.gather(1, token[:, None]).squeeze(1)


def add_at(z: Tensor, token: Tensor, value: Tensor | float) -> Tensor:
    """z_t += value, in place; returns z (N, V)."""
    z[torch.arange(len(z), device=z.device), token] += value
    return z


def sum_log1m(q: Tensor) -> Tensor:
    """sum_v log(1 - q_v) (N,). Logarithms are dear, so they are taken of products of eight factors, (1 - a)(1 - b) = 1 - (a + b - ab), in which a small q
    keeps all of its digits. For q not near 1, where 1 - q has no digits left."""
    n = q.shape[1] // 8
    folded, rest = q[:, :8 * n].unflatten(1, (8, n)), q[:, 8 * n:]
    for _ in range(3):
        a, b = folded.chunk(2, dim=1)
        folded = torch.addcmul(a + b, a, b, value=-1)
    return folded[:, 0].neg().log1p().sum(1) + rest.neg().log1p().sum(1)


def check_positive(**values: float) -> None:
    """ValueError naming an argument that is not a positive finite number."""
    for name, value in values.items():
        if not 0 < value < float("inf"):
            raise ValueError(f"{name} = {value}: must be positive and finite")
