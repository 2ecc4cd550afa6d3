"""A head joined to its projection: the loss of many rows without all their logits, and the distribution."""

import functools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial, reduce
from typing import Any, NamedTuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from .base import Head, Targets, at_labels, check_range
from .projection import (
    BayesianProjection,
    Projection,
    Weights,
    logits_of,
    reciprocal_lengths,
    remove_radial_,
    scale_hidden,
    tell_scale,
    unit,
)
from .sampled import SampledSoftmax

# -----------------------------------------------------------------------------
# How the work is cut


class Sizes(NamedTuple):
    """The last bits of results depend on `rows` and `block`, not on the number of workers."""

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


def sizes(count: int, vocab_size: int, device: torch.device, chunk: int = 0) -> Sizes:
    """The sizes for `count` rows of logits over `vocab_size` tokens. A `chunk` other than 0 is taken as it
    is."""
    rows, block = chunk_rows(vocab_size, device.type), block_rows(vocab_size, device.type)
    if device.type != "cpu":
        return Sizes(chunk or rows, chunk or rows, 2**31, 1)
    # to wake the threads takes longer than work of a fraction of a millisecond
    workers = torch.get_num_threads() if count * vocab_size >= 2**22 else 1
    # more chunks than threads, so that none is idle for long; one thread adds up fewer and longer products
    rows, least = (rows, 64) if workers > 1 else (max(rows // 2, 256), 512)
    rows = min(rows, max(least, -(-count // 4)))
    columns = min(4096, -(-vocab_size // workers // 64) * 64)  # each thread has a slice
    return Sizes(chunk or rows, block, columns, workers)


@functools.lru_cache(maxsize=4)
def threads(count: int) -> ThreadPoolExecutor:
    """`count` threads, in each of which torch computes with that one thread."""
    pool, all_there = ThreadPoolExecutor(count, "chunks"), threading.Barrier(count + 1)
    before = torch.get_num_threads()

    def use_one_core() -> None:
        torch.get_num_threads()  # the first call sets this thread's count, so it comes before the next line
        torch.set_num_threads(1)
        all_there.wait()

    for _ in range(count):
        pool.submit(use_one_core)
    all_there.wait()
    torch.set_num_threads(before)  # a thread yet to come takes the last number that any has set
    return pool


def run_on_threads(jobs: list[Callable[[], None]], workers: int) -> None:
    """Does all `jobs` on `workers` threads of one core each, and returns when all are done.

    These threads wait for each other once a chunk. torch's own wait after each operation, and beside other
    processes that stalls for seconds.
    """
    if workers == 1 or len(jobs) == 1:
        for job in jobs:
            job()
        return
    futures = [threads(workers).submit(job) for job in jobs]
    try:
        wait(futures)
    finally:  # Ctrl-C: no thread may go on writing where nobody waits for it
        for future in futures:
            future.cancel()
        wait(futures)
    for future in futures:
        future.result()


# -----------------------------------------------------------------------------
# The loss and its gradient, a chunk of rows at a time


def chunked_loss(
    hidden: Tensor,
    weights: Weights,
    head: Head,
    targets: Targets,
    chunk: int = 0,
    gain: Tensor | float = 1.0,
    compiled: Callable[..., Any] | None = None,
    added: tuple[Tensor, Tensor] | None = None,
    look: Callable[[int, Tensor], None] | None = None,
) -> Tensor:
    """Sum over rows of head.loss(gain hidden W^T + b, targets), without the (N, V) logits: a float32 scalar.

    hidden (N, C); targets of N rows. Value and gradients (of hidden, weight, bias, gain and the head's
    parameters) equal the unchunked ones; higher derivatives do not exist. Under autocast the matrix products
    run in its dtype and everything else in float32. On a CPU each chunk belongs to one thread.
    Source: Liger's fused linear cross-entropy, Hsu et al. 2024, arXiv 2410.10989; here for any row-wise loss.

    chunk     rows of a matrix product (0: see `sizes`)
    compiled  torch.compile of `fused`, for a head with a `gradient`
    added     (x (N, r), B (V, r)): x B^T is added to the products; not for a head on cosines
    look      is called with each block's first row and logits (n, V), which it may keep nothing of
    """
    hidden, (weight, bias), device = scale_hidden(hidden, head, gain), weights, hidden.device.type
    N, V, cpu = len(hidden), head.vocab_size, device == "cpu"
    # of the matrix products, and of the head's own arithmetic: float32, or float64 in the tests
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    work = torch.promote_types(hidden.dtype, torch.float32)
    differentiable = torch.is_grad_enabled()

    # How the work is cut
    cut = sizes(N, V, hidden.device, chunk)
    if compiled is not None and not chunk:
        rows = rows_that_fit(hidden.device, len(weight) * dtype.itemsize)
        cut = cut._replace(rows=rows, block=rows)
    # padding makes a GPU's products faster, and a CPU's arithmetic slower: rows of logits are apart there
    width = V if cpu else len(weight)
    chunks = [slice(i, min(i + cut.rows, N)) for i in range(0, N, cut.rows)]
    slices = [slice(v, min(v + cut.columns, width)) for v in range(0, width, cut.columns)]

    # autocast lowers the products, and nothing else; the threads have none
    with torch.no_grad(), torch.autocast(device, enabled=False):
        factors = [(hidden, weight)] if added is None else [(hidden, weight), added]
        lowered = [(x.to(dtype), w[:width].to(dtype)) for x, w in factors]
        # unit rows of the weight would be another (V, C): the products are divided by the rows' lengths
        scale = reciprocal_lengths(weight)[:V] if head.cosine else None
        # What comes out: losses, and the gradients of what learns
        losses = [hidden.new_zeros((), dtype=work) for _ in chunks]
        inputs = [*(t for pair in factors for t in pair), *([] if bias is None else [bias])]
        learned = [t for t in inputs if t.requires_grad and differentiable]
        gradients = {id(t): torch.zeros_like(t) for t in learned}
        d_factors = [(gradients.get(id(x)), gradients.get(id(w))) for x, w in factors]
        d_bias = gradients.get(id(bias))
        own = [p for p in head.parameters() if p.requires_grad and differentiable]
        d_own = [[torch.zeros_like(p) for p in own] for _ in chunks]
        # Memory for the logits, then for their gradient; and for a block in float32 where the products are
        # narrower. It is used again and again: fresh memory is slower
        buffers = [lowered[0][0].new_empty(min(cut.rows, N), width) for _ in chunks[: cut.workers]]
        apart = cpu and dtype != work
        scratch = [b.new_empty(min(cut.block, N), V, dtype=work) for b in buffers if apart]

        @torch.no_grad()
        def do_chunk(k: int) -> None:
            """Chunk k: logits, losses, their gradient in the logits' place, and that of the hidden states."""
            first, last, worker = chunks[k].start, chunks[k].stop, k % cut.workers
            (h, w), *more = lowered
            z = torch.mm(h[first:last], w.t(), out=buffers[worker][: last - first])
            for x, b in more:
                z.addmm_(x[first:last], b.t())
            for i in range(0, last - first, cut.block):
                rows = z[i : i + cut.block]
                part = targets.part(first + i, first + i + len(rows))
                if compiled is not None:
                    loss, ids, at_ids = compiled(head, rows, bias, scale, part)
                else:
                    products = rows[:, :V]
                    logits = scratch[worker][: len(rows)].copy_(products) if apart else products.to(work)
                    if look is not None:
                        seen = logits if scale is None else logits * scale
                        look(first + i, seen.clone() if bias is None else seen + bias)
                    loss, gradient, ids, at_ids, d_params = differentiate(
                        head, logits.contiguous(), bias, scale, part, own, bool(learned or own)
                    )
                    if gradient is not products:
                        products.copy_(gradient)
                    rows[:, V:] = 0
                    for total, d in zip(d_own[k], d_params):
                        total += d
                rows.scatter_(1, ids, at_ids.to(rows.dtype))
                losses[k] += loss.sum()
            for (_, w), (d_x, _) in zip(lowered, d_factors):
                if d_x is not None:
                    d_x[first:last] = z @ w

        @torch.no_grad()
        def add_weight_gradient(part: slice, group: range) -> None:
            """The gradient of a slice of the vocabulary, added up over a group of chunks in their order."""
            for k in group:
                z = buffers[k % cut.workers][: chunks[k].stop - chunks[k].start, part]
                for (x, _), (_, d_w) in zip(lowered, d_factors):
                    if d_w is not None and z.dtype == d_w.dtype:
                        d_w[part].addmm_(z.t(), x[chunks[k]], beta=float(k > 0))
                    elif d_w is not None:
                        d_w[part] += z.t() @ x[chunks[k]]
                if d_bias is not None:
                    d_bias_part = d_bias[part]  # the padding of the weight has no bias
                    total = z[:, : len(d_bias_part)].sum(0, dtype=work)
                    d_bias_part += total if scale is None else total / scale[part]

        for first in range(0, len(chunks), cut.workers):
            group = range(first, min(first + cut.workers, len(chunks)))
            run_on_threads([partial(do_chunk, k) for k in group], cut.workers)
            if d_bias is not None or any(d_w is not None for _, d_w in d_factors):
                run_on_threads([partial(add_weight_gradient, s, group) for s in slices], cut.workers)
        if head.cosine and (d_weight := d_factors[0][1]) is not None:
            remove_radial_(d_weight, weight, cut.columns)
        sums = [sum(parts, torch.zeros_like(p)) for p, *parts in zip(own, *d_own)]
        total = sum(losses, hidden.new_zeros((), dtype=work))
    return PrecomputedGradient.apply(total, [*gradients.values(), *sums], *learned, *own)


def differentiate(
    head: Head,
    logits: Tensor,
    bias: Tensor | None,
    scale: Tensor | None,
    targets: Targets,
    params: Sequence[Tensor] = (),
    needed: bool = True,
) -> tuple[Tensor, Tensor, Tensor, Tensor, list[Tensor]]:
    """The losses (n,) of the products `logits` (n, V), which it may overwrite, and their gradients.

    Returns the losses; the gradient (n, V), right but at `ids` (n, K); ids; the gradient there (n, K); and
    the gradients of `params`, the head's own. If none is `needed`, only the losses mean anything.
    """
    if scale is not None:
        logits *= scale
    if bias is not None:
        logits += bias
    weights, d_params = targets.weights, []
    if head.gradient is not None and not params:
        loss, gradient, at_ids = head.gradient(logits, targets)
        if weights is not None:
            loss, gradient, at_ids = loss * weights, gradient * weights[:, None], at_ids * weights[:, None]
    else:
        with torch.set_grad_enabled(needed):
            loss = head.loss(logits.requires_grad_(needed), targets)
            loss = loss if weights is None else loss * weights
        gradient, inputs, ones = logits, (logits, *params), torch.ones_like(loss)
        if needed:
            gradient, *d_params = torch.autograd.grad(loss, inputs, ones, materialize_grads=True)
        loss, at_ids = loss.detach(), gradient.gather(1, targets.ids[:, :1])
    ids, at_ids = at_labels(targets.ids, at_ids)
    if scale is not None:
        gradient, at_ids = gradient * scale, at_ids * scale[ids]
    return loss, gradient, ids, at_ids, d_params


def fused(
    head: Head, z: Tensor, bias: Tensor | None, scale: Tensor | None, targets: Targets
) -> tuple[Tensor, Tensor, Tensor]:
    """`differentiate` for torch.compile: from products z (n, padded V) in any precision to their gradient,
    which takes their place but at `ids`. All between is in float32 and in registers: z is read twice and
    written once."""
    logits = z[:, : head.vocab_size].to(torch.promote_types(z.dtype, torch.float32))
    loss, gradient, ids, at_ids, _ = differentiate(head, logits, bias, scale, targets)
    z.copy_(F.pad(gradient.to(z.dtype), (0, z.shape[1] - head.vocab_size)))  # padding has no gradient
    return loss, ids, at_ids


class PrecomputedGradient(torch.autograd.Function):
    """A loss whose gradients in `inputs` are known already."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, gradients: list[Tensor], *inputs: Tensor) -> Tensor:
        ctx.gradients = gradients
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative(grad)
        if ctx.gradients is None:
            raise RuntimeError("chunked_loss keeps its gradients for one backward only")
        # scaled in place: a copy would be another (V, C)
        gradients, ctx.gradients = [g.mul_(grad) for g in ctx.gradients], None
        return None, None, *gradients


def refuse_second_derivative(grad: Tensor) -> None:
    """RuntimeError in a backward that is to be differentiated: the gradient would be taken for a constant."""
    if torch.is_grad_enabled():
        raise RuntimeError("a loss in chunks has no second derivative: call backward without create_graph")


@functools.cache
def rows_that_fit(device: torch.device, row: int) -> int:
    """How many rows of logits, of `row` bytes each, take an eighth of a GPU's memory; on a CPU all."""
    if device.type != "cuda":
        return 2**31
    return max(128, torch.cuda.get_device_properties(device).total_memory // 8 // row)


# -----------------------------------------------------------------------------


class OutputHead(nn.Module):
    """A head and its projection: the loss of hidden states, and their predictive distribution.

    The logits are z = g h W^T + b with a `gain` g > 0; for heads on cosines, g sqrt(C) cos(h, w) + b. A
    learned gain starts there and is kept as its logarithm. The gain is beside the head, so that any head can
    be compared at any gain: for softmax it is one over the temperature.
    """

    def __init__(self, head: Head, projection: Projection, gain: float = 1.0, learn_gain: bool = False):
        super().__init__()
        check_range("(0, inf)", gain=gain)
        self.head, self.projection, self.fixed_gain = head, projection, gain
        self.fused: Callable[..., Any] | None = None  # see `compile`
        self.log_gain = nn.Parameter(torch.tensor(math.log(gain))) if learn_gain else None
        tell_scale(head, gain if self.log_gain is None else self.log_gain, projection.weight.shape[1])

    @property
    def gain(self) -> Tensor | float:
        """g, as it is now."""
        return self.fixed_gain if self.log_gain is None else self.log_gain.exp()

    def loss(
        self, hidden: Tensor, targets: Targets, generator: torch.Generator | None = None
    ) -> tuple[Tensor, int]:
        """(sum of the losses in nats, number of positions that have one) over hidden (..., C).

        A Bayesian projection draws its weights once, from `generator`; so does SampledSoftmax its tokens, and
        without one it takes all. `targets` are `kept()`: on a GPU, to look for positions without a loss
        would mean to wait for it.
        """
        hidden = hidden.reshape(-1, hidden.shape[-1])
        if targets.rows is not None:
            hidden = hidden[targets.rows]
        weights = self.projection.draw(generator)
        if self.training and generator is not None and isinstance(self.head, SampledSoftmax):
            hidden = scale_hidden(hidden, self.head, self.gain)
            return self.head.sampled_loss(hidden, weights, targets, generator), len(hidden)
        total = chunked_loss(hidden, weights, self.head, targets, gain=self.gain, compiled=self.fused)
        return total, len(hidden)

    def compile(self, **options: Any) -> None:
        """Compiles what training does to logits: a head's `gradient` whole, see `fused`; of another head the
        loss and, by autograd, its gradient."""
        if self.head.gradient is not None and self.head.compiles:
            self.fused = torch.compile(fused, fullgraph=True, **options)
        else:
            vars(self.head)["loss"] = torch.compile(self.head.loss, **options)  # of this head, not its class

    @torch.no_grad()
    def draws(self, samples: int, seed: int, dtype: torch.dtype = torch.float32) -> list[Weights]:
        """The weights that `log_probs` averages over, of length 1 for cosines: `samples` draws, a pure
        function of the seed; one where weights are points."""
        if not isinstance(self.projection, BayesianProjection):
            samples = 1
        generator = torch.Generator(self.projection.weight.device).manual_seed(seed)
        return [self.scored(self.projection.draw(generator), dtype) for _ in range(samples)]

    def scored(self, drawn: Weights, dtype: torch.dtype = torch.float32) -> Weights:
        """A draw as `log_probs` takes it: of length 1 for cosines."""
        return Weights((unit(drawn.weight) if self.head.cosine else drawn.weight).to(dtype), drawn.bias)

    def log_probs(self, hidden: Tensor, draws: list[Weights]) -> Tensor:
        """log p (N, V), float32, of the predictive distribution p = mean over draws of p(. | W):
        log-mean-exp, never the mean NLL."""
        return self._mean(self._products(hidden, draws), draws)

    def log_prob_blocks(self, hidden: Tensor, draws: list[Weights]) -> Iterator[tuple[slice, Tensor]]:
        """`log_probs` of many rows: (rows, log p of these rows), a few rows at a time, each to be used before
        the next is asked for."""
        V, device = self.head.vocab_size, hidden.device.type
        chunk, block = max(1, chunk_rows(V, device) // len(draws)), block_rows(V, device)
        for start in range(0, len(hidden), chunk):
            h = hidden[start : start + chunk]
            products = self._products(h, draws)
            for i in range(0, len(h), block):
                yield (
                    slice(start + i, start + min(i + block, len(h))),
                    self._mean([z[i : i + block] for z in products], draws),
                )

    def log_p_of(self, hidden: Tensor, draws: list[Weights], token: Tensor) -> Tensor:
        """log p (N,), float32, of one token (N,) after each row of `hidden` (N, C)."""
        blocks, token = self.log_prob_blocks(hidden, draws), token.to(hidden.device)[:, None]
        return torch.cat([log_p.gather(1, token[rows])[:, 0] for rows, log_p in blocks])

    def _products(self, hidden: Tensor, draws: list[Weights]) -> list[Tensor]:
        hidden = scale_hidden(hidden, self.head, self.gain)
        return [hidden.to(d.weight.dtype) @ d.weight.t() for d in draws]

    def _mean(self, products: list[Tensor], draws: list[Weights]) -> Tensor:
        V = self.head.vocab_size
        each = (self.head.log_probs(logits_of(z, weights, V)) for z, weights in zip(products, draws))
        with torch.autocast(products[0].device.type, enabled=False):  # lowers the projection only
            total = reduce(torch.logaddexp, each)
        return total - math.log(len(draws)) if len(draws) > 1 else total
