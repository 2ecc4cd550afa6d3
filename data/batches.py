"""Batches of training: which tokens a step sees is a pure function of (seed, step, rank).

A `BatchSource` makes inputs, positions and targets; `Loader` brings them to the device. `TextSource` is one,
for windows of text; a lab's task may have its own.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from common.errors import UserError
from data.tokens import TokenFile
from heads import Head, Targets


class Batch(NamedTuple):
    """What the trunk reads and what it is to predict, in training as in scoring."""

    tokens: Tensor  # (B, T)
    targets: Targets  # of N of the B * T positions, those that have a loss
    positions: Tensor | None = None  # where each token stands, as a lab's trunk takes them; None: 0, 1, ...

    def moved(self, move: Callable[[Tensor], Tensor]) -> "Batch":
        """`move` of each tensor: to another device, or to pinned memory."""
        positions = None if self.positions is None else move(self.positions)
        return Batch(move(self.tokens), self.targets.moved(move), positions)


class BatchSource(Protocol):
    """Training batches."""

    parts: int  # micro-batches of a step, in each process

    def positions_with_loss(self, step: int) -> int:
        """How many positions of the whole step, in all processes, have a loss. Training divides the sum of
        the losses by that."""
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
    text consists of sequences of one length, the windows are these sequences. The last one is left out if no
    token follows it. UserError if there is not one window, or if the sequences have another length.
    """

    def __init__(self, tokens: TokenFile, block_size: int):
        self.tokens, self.ids, self.block_size = tokens, tokens.ids, block_size
        self.given, length = tokens.given, tokens.info.get("length", block_size)
        if len(self) < 1:
            raise UserError(
                f"block_size = {block_size} is too long for {tokens.path}: {len(self.ids)} tokens"
            )
        if block_size != length:
            raise UserError(f"{tokens.path} has sequences of {length} tokens: give --block_size={length}")

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


class Labeller(Protocol):
    def targets(self, indices: np.ndarray, x: Tensor, y: Tensor) -> Targets:
        """Targets of the B * T positions of the windows `indices` (B,), with inputs x and next tokens y
        (B, T)."""
        ...


class TrueLabels(NamedTuple):
    """The targets that a head makes of the true token."""

    head: Head

    def targets(self, indices: np.ndarray, x: Tensor, y: Tensor) -> Targets:
        return self.head.targets(x, y)


@dataclass
class TextSource:
    """Windows of text, `batch_size` a step over `world` processes, of which this is number `rank`;
    `micro_batch` of its share at a time (0: all). UserError if batch_size is not a multiple of both.

    Where a corpus' sequences begin with tokens that are given (labs' mazes, climbs and image classes; a
    user's questions), only the rest is predicted. A corpus can also ask that a token which says nothing takes
    the place of the given ones, in a share of the sequences (data.prepare.corpus.Split.dropped).
    """

    windows: Windows
    labels: Labeller
    batch_size: int
    seed: int
    micro_batch: int = 0
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        share = self.world * (self.micro_batch or 1)
        if self.batch_size % share:
            raise UserError(
                f"batch_size = {self.batch_size}: no multiple of processes x micro_batch = {share}"
            )
        self.size = self.micro_batch or self.batch_size // self.world
        self.parts = self.batch_size // self.world // self.size

    def positions_with_loss(self, step: int) -> int:
        return self.batch_size * (self.windows.block_size - self.windows.given)

    def read(self, step: int, part: int) -> tuple[np.ndarray, np.ndarray, Tensor, Tensor]:
        """The windows of a micro-batch: their numbers in the step's batch and in the text (B,), their tokens
        and the next ones (B, T).

        In the share of the sequences that the corpus asks for, the given tokens are lost: for classifier-free
        guidance (Ho & Salimans 2022, arXiv 2207.12598, algorithm 1). A sequence loses them in some visits and
        not in others: a pure function of (seed, step, row).
        """
        rows = np.arange(self.batch_size)[self.rank :: self.world][part * self.size : (part + 1) * self.size]
        indices = batch_indices(len(self.windows), self.batch_size, step, self.seed)[rows]
        x, y = self.windows.get(indices)
        info = self.windows.tokens.info
        if share := info.get("dropped"):
            rng = np.random.default_rng((self.seed, step, DROPPING))
            x = x.clone()  # a view of the tokens
            x[rng.random(self.batch_size)[rows] < share, : self.windows.given] = info["absent"]
        return rows, indices, x, y

    def batch(self, step: int, part: int) -> Batch:
        _, indices, x, y = self.read(step, part)
        targets = self.labels.targets(indices, x, y)
        scored = None
        if given := self.windows.given:
            at = torch.arange(x.shape[1])
            # the last token has no loss either: the token after it is another sequence's
            scored = ((at >= given - 1) & (at < len(at) - 1)).expand(x.shape)
        return Batch(x, targets.kept(scored))


# -----------------------------------------------------------------------------
# Loading


class Loader:
    """A step's batches on the `device`. A thread loads the next one while the model works on this one."""

    def __init__(self, source: BatchSource, device: torch.device):
        self.source, self.device = source, device
        # The loader's thread computes alone: a second team of torch's threads beside the model's would slow
        # down both, for good. torch gives the latest count to each thread that has none yet, so this thread
        # takes its own before the loader's sets 1
        torch.get_num_threads()
        self.thread = ThreadPoolExecutor(1, "batches", torch.set_num_threads, (1,))
        self.ahead: dict[tuple[int, int], Future[Batch]] = {}  # (step, part) -> the batch to come

    def batches(self, step: int) -> Iterator[Batch]:
        """The micro-batches of `step`, on the device."""
        for part in range(self.source.parts):
            with torch.profiler.record_function("data and labels"):
                now = self.ahead.pop((step, part), None) or self.thread.submit(self._load, step, part)
                after = (step, part + 1) if part + 1 < self.source.parts else (step + 1, 0)
                self.ahead = {after: self.thread.submit(self._load, *after)}
                batch = now.result().moved(lambda t: t.to(self.device, non_blocking=True))
            yield batch

    def _load(self, step: int, part: int) -> Batch:
        batch = self.source.batch(step, part)
        # pinned, so that the copy to a GPU need not wait; contiguous, because torch copies a view, such as x,
        # through memory that is not pinned
        return batch.moved(lambda t: t.contiguous().pin_memory()) if self.device.type == "cuda" else batch

    def close(self) -> None:
        self.thread.shutdown(cancel_futures=True)
