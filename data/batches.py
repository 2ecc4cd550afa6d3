"""Batches of training: which tokens a step sees is a pure function of (seed, step, rank).

A source yields inputs, positions and targets. Text windows are one; a grammar's, images' or mazes' can be
others: what `Loader` needs is the four members of `BatchSource`.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from common.errors import UserError
from data.tokens import TokenFile
from heads import Targets
from model import Read, Step, shifted


class Batch(NamedTuple):
    tokens: Tensor  # (B, T)
    targets: Targets  # of those of the B * T positions that have a loss
    positions: Tensor | None = None  # where each token stands, as the trunk takes them; None: 0, 1, ...


class BatchSource(Protocol):
    """Training batches."""

    parts: int  # micro-batches of a step, in each process

    def positions_with_loss(self, step: int) -> int:
        """Positions of the whole step, in all processes: training divides the sum of the losses by them."""
        ...

    def batch(self, step: int, part: int) -> Batch:
        """Micro-batch number `part` of this process in `step`, a pure function of both."""
        ...


# -----------------------------------------------------------------------------
# Text


class Windows:
    """Non-overlapping windows of `block_size` inputs and their next tokens; window w starts at token
    w * block_size.

    A fixed grid, so that labels stored by position belong to the same left context in every epoch. Where the
    text is of sequences of one length, windows are these sequences. UserError if there is not one window.
    """

    def __init__(self, tokens: TokenFile, block_size: int):
        self.tokens, self.ids, self.block_size = tokens, tokens.ids, block_size
        if len(self) < 1:
            raise UserError(
                f"{tokens.path} holds {len(self.ids)} tokens, fewer than one window of "
                f"block_size = {block_size}: use more text or a smaller block"
            )
        self.given = tokens.info.get("given", 0)
        if block_size != (length := tokens.info.get("length", block_size)):
            raise UserError(
                f"block_size = {block_size}: {tokens.path} has sequences of {length} tokens; "
                f"give --block_size={length}"
            )

    def __len__(self) -> int:
        return (len(self.ids) - 1) // self.block_size

    def get(self, indices: np.ndarray) -> tuple[Tensor, Tensor]:
        """Inputs and next tokens (B, T), int64, of the windows `indices` (B,)."""
        T = self.block_size
        rows = np.stack([self.ids[w * T : w * T + T + 1] for w in indices]).astype(np.int64)
        ids = torch.from_numpy(rows)
        return ids[:, :-1], ids[:, 1:]


@lru_cache(maxsize=2)
def _epoch(n: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng((seed, epoch)).permutation(n)


def batch_indices(n: int, batch_size: int, step: int, seed: int) -> np.ndarray:
    """The windows (batch_size,) of training step `step`, out of `n`: every epoch visits each once, in an
    order of its own."""
    number = np.arange(step * batch_size, (step + 1) * batch_size)
    return np.array([_epoch(n, seed, i // n)[i % n] for i in number.tolist()])


DROPPING = 0x64726F70  # a stream of random numbers of its own, beside those of the windows
Arrange = Callable[[Tensor, Step, int], Read]  # model.Trunk.arrange


class Labeller(Protocol):
    def targets(self, indices: np.ndarray, x: Tensor, y: Tensor) -> Targets: ...


def windows_at_a_time(batch_size: int, micro_batch: int, world: int) -> int:
    """Of a process's share of a batch: `micro_batch`, or all of it if that is 0. UserError if they do not
    divide up."""
    if batch_size % (world * (micro_batch or 1)):
        raise UserError(
            f"batch_size = {batch_size} is not a multiple of processes x micro_batch = "
            f"{world} x {micro_batch or 1}"
        )
    return micro_batch or batch_size // world


class TextSource:
    """Windows of text, `batch_size` a step over `world` processes, of which this is number `rank`;
    `micro_batch` of its share at a time (0: all). UserError if they do not divide up.

    The trunk says how it reads them (`arrange`), and is told at which step the schedule has its `end`. Where
    tokens are given (`Windows.given`), only the rest of the window is predicted; and a corpus can ask that in
    a share of the sequences a token which says nothing takes their place (data.prepare.corpus.Split.dropped).
    """

    def __init__(
        self,
        windows: Windows,
        labels: Labeller,
        batch_size: int,
        seed: int,
        micro_batch: int = 0,
        rank: int = 0,
        world: int = 1,
        arrange: Arrange = lambda windows, step, given: shifted(windows, given),
        end: int = 1,
    ):
        self.windows, self.labels, self.batch_size, self.seed = windows, labels, batch_size, seed
        self.rank, self.world, self.arrange, self.end = rank, world, arrange, end
        self.size = windows_at_a_time(batch_size, micro_batch, world)
        self.parts = batch_size // world // self.size

    def positions_with_loss(self, step: int) -> int:
        return self.batch_size * (self.windows.block_size - self.windows.given)

    def batch(self, step: int, part: int) -> Batch:
        rows = np.arange(self.batch_size)[self.rank :: self.world][part * self.size : (part + 1) * self.size]
        mine = batch_indices(len(self.windows), self.batch_size, step, self.seed)[rows]
        x, y = self.windows.get(mine)
        windows = torch.cat((self._drop(x, step, rows), y[:, -1:]), 1)
        at = Step(step, self.end, self.seed, torch.from_numpy(rows), self.batch_size)
        read = self.arrange(windows, at, self.windows.given)
        # of all targets, for a teacher reads what is given, too
        targets = self.labels.targets(mine, read.tokens, read.targets)
        if not read.scored.all():
            scored = read.scored.flatten()[:, None].to(targets.ids.device)
            targets = targets._replace(ids=torch.where(scored, targets.ids, -1))
        if read.weights is not None:
            targets = targets._replace(weights=read.weights.flatten())
        return Batch(read.tokens, targets.kept(), read.positions)

    def _drop(self, x: Tensor, step: int, rows: np.ndarray) -> Tensor:
        """`x` (B, T), the rows `rows` (B,) of a step, without what is given in the share that the corpus asks
        for: classifier-free guidance (Ho & Salimans 2022, arXiv 2207.12598, algorithm 1).

        A sequence is dropped in some visits and not in others: a pure function of (seed, step, row).
        """
        info = self.windows.tokens.info
        if not info.get("dropped"):
            return x
        rng = np.random.default_rng((self.seed, step, DROPPING))
        dropped = torch.from_numpy(rng.random(self.batch_size)[rows] < info["dropped"])
        x = x.clone()  # a view of the tokens
        x[dropped, : self.windows.given] = info["absent"]
        return x


# -----------------------------------------------------------------------------
# Loading


class Loader:
    """A step's batches on the `device`. A thread loads the one to come while the model works on this one."""

    def __init__(self, source: BatchSource, device: torch.device):
        self.source, self.device = source, device
        # In the loader's thread torch computes with one thread: a second team of threads beside the model's
        # would slow down both, for good. torch gives the latest count to each thread that has none yet, so
        # this thread takes its own before the loader's sets 1
        torch.get_num_threads()
        self.thread = ThreadPoolExecutor(1, "batches", torch.set_num_threads, (1,))
        self.ahead: dict[tuple[int, int], Future[Batch]] = {}  # (step, part) -> the batch to come

    def batches(self, step: int) -> Iterator[Batch]:
        for part in range(self.source.parts):
            with torch.profiler.record_function("data and labels"):
                batch = self._to_device(self._next(step, part))
            yield batch

    def _next(self, step: int, part: int) -> Batch:
        now = self.ahead.pop((step, part), None) or self.thread.submit(self._load, step, part)
        after = (step, part + 1) if part + 1 < self.source.parts else (step + 1, 0)
        self.ahead = {after: self.thread.submit(self._load, *after)}
        return now.result()

    def _load(self, step: int, part: int) -> Batch:
        batch = self.source.batch(step, part)
        # pinned, so that the copy to a GPU need not wait; contiguous, because torch copies a view, such as x,
        # through memory that is not pinned
        return _moved(batch, lambda t: t.contiguous().pin_memory()) if self.device.type == "cuda" else batch

    def _to_device(self, batch: Batch) -> Batch:
        return _moved(batch, lambda t: t.to(self.device, non_blocking=True))

    def close(self) -> None:
        self.thread.shutdown(cancel_futures=True)


def _moved(batch: Batch, move: Callable[[Tensor], Tensor]) -> Batch:
    positions = None if batch.positions is None else move(batch.positions)
    return Batch(move(batch.tokens), batch.targets.moved(move), positions)
