"""The loss of many rows without their logits: projected, judged and differentiated a chunk at a time."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .base import Head, Targets
from .projection import Weights, across_, amplified, reciprocal_lengths
from .tasks import Task, run

# Class of heads -> f(head, logits (N, V), targets): returns `loss` (N,) and overwrites the logits with its
# gradient. A subclass has none unless it is entered itself, for its loss may be another one. closed_forms.py
# fills this; autograd differentiates all other heads, in twice the time on a CPU.
IN_PLACE: dict[type[Head], Callable[[Any, Tensor, Targets], Tensor]] = {}


class Sizes(NamedTuple):
    """How the work is cut. The last bits of results depend on `rows` and `block`, not on the number of
    workers."""

    rows: int  # of logits that one matrix product makes: a chunk
    block: int  # of these, the rows that the head's arithmetic takes at a time
    columns: int  # of the weight's gradient that one matrix product makes
    workers: int  # threads, each with chunks of its own


def chunk_rows(vocab_size: int, device: str) -> int:
    """Rows of logits for one matrix product: never too few for it to be efficient; on a GPU half a
    gigabyte."""
    return max(128, (2**22 if device == "cpu" else 2**27) // vocab_size)


def block_rows(vocab_size: int, device: str) -> int:
    """Rows of logits for a head's arithmetic: on a CPU two megabytes, which its caches hold; on a GPU all
    there are."""
    return max(1, 2**19 // vocab_size) if device == "cpu" else chunk_rows(vocab_size, device)


def sizes(count: int, vocab_size: int, device: str, chunk: int = 0, block: int = 0) -> Sizes:
    """The sizes for `count` rows of logits over `vocab_size` tokens. A `chunk` or `block` other than 0 is
    taken as it is."""
    rows, few = chunk_rows(vocab_size, device), block_rows(vocab_size, device)
    if device != "cpu":
        return Sizes(chunk or rows, block or few, 2**31, 1)
    # to wake the threads takes longer than work of a fraction of a millisecond
    workers = torch.get_num_threads() if count * vocab_size >= 2**22 else 1
    # more chunks than threads, so that none is idle for long; one thread adds up fewer and longer products
    rows, least = (rows, 64) if workers > 1 else (max(rows // 2, 256), 512)
    rows = min(rows, max(least, -(-count // 4)))
    return Sizes(chunk or rows, block or few, 4096, workers)


class _Gradients:
    """The losses of all rows, and the gradients of everything that has one, in one pass."""

    def __init__(
        self,
        hidden: Tensor,
        weights: Weights,
        head: Head,
        targets: Targets,
        dtype: torch.dtype,
        cut: Sizes,
        needs: list[bool],
        params: list[Tensor],
    ):
        self.head, self.targets, self.cut, self.params = head, targets, cut, params
        self.V = head.vocab_size
        # dtype: of the matrix products; work: of the head's own arithmetic: float32, or float64 in the tests
        self.dtype, self.work = dtype, torch.promote_types(hidden.dtype, torch.float32)
        # the padding makes a GPU's products faster, and a CPU's arithmetic slower, as rows of logits are then
        # apart
        kept = self.V if hidden.device.type == "cpu" else len(weights.weight)
        self.hidden, self.weight, self.bias = hidden.to(dtype), weights.weight[:kept].to(dtype), weights.bias
        # unit rows of the weight would be another (V, C): the products are divided by the rows' lengths
        self.scale = reciprocal_lengths(weights.weight)[: self.V] if head.cosine else None
        self.needed = any(needs)
        self.d_hidden = torch.empty_like(hidden) if needs[0] else None
        self.d_weight = torch.empty_like(weights.weight) if needs[1] else None
        self.d_bias = torch.empty_like(self.bias) if self.bias is not None and needs[2] else None
        chunks = -(-len(hidden) // cut.rows)
        for grad, first in ((self.d_weight, kept if chunks else 0), (self.d_bias, self.V if chunks else 0)):
            if grad is not None:
                grad[first:] = 0  # what no chunk writes
        self.slices = [slice(v, min(v + cut.columns, kept)) for v in range(0, kept, cut.columns)]
        if self.d_weight is None and self.d_bias is None:
            self.slices = []
        self.losses: list[Any] = [None] * chunks
        self.d_params: list[list[Tensor | None]] = [[]] * chunks
        # one more than threads, so that one can be filled while the products of another still need it
        spare = 1 if cut.workers == 1 else cut.workers + 1
        self.buffers = [
            self.hidden.new_empty(min(cut.rows, len(hidden)), kept) for _ in range(min(chunks, spare))
        ]
        # where a buffer's logits are judged, if its precision is not `work`: fresh memory each time is slower
        lower = self.dtype != self.work and hidden.device.type == "cpu"
        shape = (min(cut.block, cut.rows, len(hidden)), self.V)
        self.scratch = [self.hidden.new_empty(shape, dtype=self.work) for _ in self.buffers if lower]
        # and where a slice of the weight's gradient is multiplied before it is added up
        self.product = None
        if lower and cut.workers == 1 and self.slices and self.d_weight is not None:
            self.product = self.hidden.new_empty(min(cut.columns, kept), hidden.shape[1])

    def tasks(self) -> list[Task]:
        """Each chunk's rows and, once they are done, its share of the weight's gradient, a slice of the
        vocabulary at a time, in the order of the chunks: so the sum does not depend on who does what. The
        next chunk of a buffer waits for all of them."""
        tasks: list[Task] = []

        def add(work: Callable[[], None], after: list[int]) -> int:
            tasks.append(Task(work, after))
            return len(tasks) - 1

        chunks, lag = len(self.losses), len(self.buffers)
        rows: dict[int, int] = {}  # chunk -> the task of its rows
        ends: dict[int, list[int]] = {}  # chunk -> the last tasks that read its buffer
        for step in range(chunks + lag):
            k = step - lag
            if k >= 0:
                before = ends.get(k - 1, [])
                ends[k] = [
                    add(partial(self.columns_of, k, part), [rows[k], *before[i : i + 1]])
                    for i, part in enumerate(self.slices)
                ]
            if step < chunks:
                free = [] if k < 0 else ends[k] or [rows[k]]  # what its buffer has to be free of
                rows[step] = add(partial(self.rows_of, step), free)
        return tasks

    def part(self, k: int) -> tuple[slice, Tensor]:
        """The rows of chunk k, and where their logits stand, which become the loss's gradient."""
        rows = slice(k * self.cut.rows, min((k + 1) * self.cut.rows, len(self.hidden)))
        return rows, self.buffers[k % len(self.buffers)][: rows.stop - rows.start]

    @torch.no_grad()
    def rows_of(self, k: int) -> None:
        rows, z = self.part(k)
        torch.mm(self.hidden[rows], self.weight.t(), out=z)
        total = torch.zeros((), dtype=self.work, device=z.device)
        d_params: list[Tensor | None] = [None] * len(self.params)
        for i in range(0, len(z), self.cut.block):
            at = rows.start + i
            block = z[i : i + self.cut.block, : self.V]
            logits = self.scratch[k % len(self.buffers)][: len(block)].copy_(block) if self.scratch else block
            loss, block_params = self.judge(block, logits, self.targets.part(at, at + len(block)))
            total += loss.sum()
            d_params = [g if d is None else d if g is None else d + g for d, g in zip(d_params, block_params)]
        self.losses[k], self.d_params[k] = total, d_params
        z[:, self.V :] = 0  # the padding has no gradient
        if self.d_hidden is not None:
            self.d_hidden[rows] = z @ self.weight

    def judge(self, z: Tensor, logits: Tensor, targets: Targets) -> tuple[Tensor, Sequence[Tensor | None]]:
        """The losses (n,) of products z (n, V), which `logits` holds, too, and the gradients of the head's
        own parameters; that of the logits takes the place of z."""
        cpu = z.device.type == "cpu"
        logits = logits.detach().to(self.work, copy=not cpu)  # on a CPU in place
        if self.scale is not None:
            logits *= self.scale
        if self.bias is not None:
            logits += self.bias
        weights = targets.weights
        in_place = IN_PLACE.get(type(self.head)) if cpu and not self.params else None
        if in_place is not None:
            loss, dz, d_params = weighted(in_place(self.head, logits, targets), weights), logits, []
            if weights is not None:
                dz *= weights[:, None]
        elif not self.needed:
            return weighted(self.head.loss(logits, targets), weights), []
        else:
            with torch.enable_grad():
                loss = weighted(self.head.loss(logits.requires_grad_(), targets), weights)
                dz, *d_params = torch.autograd.grad(loss.sum(), (logits, *self.params), allow_unused=True)
        if self.scale is not None:
            dz *= self.scale
        if dz.data_ptr() != z.data_ptr():
            z.copy_(dz)
        return loss.detach(), d_params

    @torch.no_grad()
    def columns_of(self, k: int, part: slice) -> None:
        rows, z = self.part(k)
        z = z[:, part]
        if self.d_weight is not None:
            _add_product(self.d_weight[part], z, self.hidden[rows], k == 0, self.product)
        if self.d_bias is not None:
            d_bias = self.d_bias[part]
            total = z[:, : len(d_bias)].sum(0, dtype=self.work)
            if self.scale is not None:
                total /= self.scale[part]
            d_bias.copy_(total if k == 0 else d_bias + total)


def weighted(loss: Tensor, weights: Tensor | None) -> Tensor:
    return loss if weights is None else loss * weights


def _add_product(total: Tensor, z: Tensor, h: Tensor, new: bool, product: Tensor | None) -> None:
    """total (v, C) += z^T h, or = if `new`, in total's precision whatever that of z (n, v) and h (n, C).
    `product`: room for z^T h in their precision."""
    if z.dtype == total.dtype:
        torch.addmm(total, z.t(), h, beta=0 if new else 1, out=total)
        return
    product = torch.mm(z.t(), h, out=None if product is None else product[: len(total)])
    if new:
        total.copy_(product)
    else:
        total += product


class _ChunkedLoss(torch.autograd.Function):
    """sum_n loss_n, the gradient taken in the same pass."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        head: Head,
        targets: Targets,
        dtype: torch.dtype,
        cut: Sizes,
        differentiate: bool,
        *params: Tensor,
    ) -> Tensor:
        # needs_input_grad is True for a parameter under torch.no_grad, too
        needs = [differentiate and need for need in (*ctx.needs_input_grad[:3], *ctx.needs_input_grad[8:])]
        wanted = [p for p, need in zip(params, needs[3:]) if need]
        # autocast lowers the products, and nothing else; the threads have none
        with torch.autocast(hidden.device.type, enabled=False):
            g = _Gradients(hidden, Weights(weight, bias), head, targets, dtype, cut, needs, wanted)
            run(g.tasks(), cut.workers)
            if head.cosine and g.d_weight is not None:
                across_(g.d_weight, weight, cut.columns)
        sums = iter([_sum(column) for column in zip(*g.d_params)] or [None] * len(wanted))
        d_params = [next(sums) if need else None for need in needs[3:]]
        ctx.grads = [g.d_hidden, g.d_weight, g.d_bias, *d_params]
        total = _sum(g.losses)
        return torch.zeros((), dtype=g.work, device=hidden.device) if total is None else total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative(grad)
        if ctx.grads is None:
            raise RuntimeError("chunked_loss keeps its gradients for one backward only")
        # scaled in place: a copy would be another (V, C)
        grads, ctx.grads = [g if g is None else g.mul_(grad) for g in ctx.grads], None
        d_hidden, d_weight, d_bias, *d_params = grads
        return d_hidden, d_weight, d_bias, None, None, None, None, None, *d_params


def refuse_second_derivative(grad: Tensor) -> None:
    """RuntimeError in a backward that is to be differentiated: the gradient would be taken for a constant."""
    if torch.is_grad_enabled():
        raise RuntimeError("a loss in chunks has no second derivative: call backward without create_graph")


def _sum(parts: Iterable[Tensor | None]) -> Tensor | None:
    """The sum of the parts that are not None, in their order; None if there is none."""
    total = None
    for part in parts:
        if part is not None:
            total = part if total is None else total + part
    return total


def chunked_loss(
    hidden: Tensor,
    weights: Weights,
    head: Head,
    targets: Targets,
    chunk: int = 0,
    block: int = 0,
    gain: Tensor | float = 1.0,
) -> Tensor:
    """Sum over rows of head.loss(gain hidden W^T + b, targets), without the (N, V) logits: a float32 scalar.

    hidden (N, C); targets of N rows; chunk: rows of a matrix product, block: rows of the head's arithmetic
    (0: see `sizes`). Value and gradients (of hidden, weight, bias, gain and the head's parameters) equal the
    unchunked ones; higher derivatives do not exist. Under autocast the matrix products run in its dtype and
    everything else in float32. As Liger's fused linear cross-entropy (Hsu et al. 2024, arXiv 2410.10989), for
    any row-wise loss. On a CPU each chunk belongs to one thread (see `tasks.run`).
    """
    if len(targets.ids) != len(hidden):
        raise ValueError(f"{len(targets.ids)} rows of targets for {len(hidden)} rows of hidden states")
    device = hidden.device.type
    cut = sizes(len(hidden), head.vocab_size, device, chunk, block)
    hidden = amplified(hidden, head, gain)
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    return _ChunkedLoss.apply(
        hidden,
        weights.weight,
        weights.bias,
        head,
        targets,
        dtype,
        cut,
        torch.is_grad_enabled(),
        *head.parameters(),
    )
