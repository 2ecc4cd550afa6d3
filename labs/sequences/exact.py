"""Sequences whose exact distributions are known, given any of their tokens: what their corpora share.

A task answers p(x_i = v | the known tokens) exactly, so it is a perfect any-order model of itself. Arrays are
float64 and int64; an unknown token is UNKNOWN. The method `truth` of a corpus returns `Sequences` of its
task, or another labs.sequences.two_sided.TwoSided.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from data.prepare.corpus import Contents
from labs.sequences.generated import GeneratedCorpus, drawn_splits

UNKNOWN = -1
DRAWN = 1024  # sequences at a time
JUDGED = 64  # likewise: a chain keeps T x states numbers of each


class SequenceTask(ABC):
    """Sequences of T tokens out of V. `words` are the tokens as text."""

    def __init__(self, T: int, words: list[str]):
        self.T, self.words = T, words

    @property
    def V(self) -> int:
        return len(self.words)

    @abstractmethod
    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Sequences (n, T)."""

    @abstractmethod
    def _log_prob(self, sequences: np.ndarray) -> np.ndarray:
        """As `log_prob`, of tokens that are all in 0 .. V - 1."""

    @abstractmethod
    def weights(self, tokens: np.ndarray) -> np.ndarray:
        """Proportional to p(x_i = v | known tokens) (B, T, V); an impossible row is all 0 at some i."""

    def log_prob(self, sequences: np.ndarray) -> np.ndarray:
        """log p of whole sequences (n, T): (n,), -inf for an impossible one."""
        sequences = self._checked(sequences)
        inside = (sequences >= 0).all(1)
        return np.where(inside, self._log_prob(np.maximum(sequences, 0)), -math.inf)

    def valid(self, sequences: np.ndarray) -> np.ndarray:
        """Which of the sequences (n, T) are possible: (n,) bool. One with an UNKNOWN token is not."""
        return self.log_prob(sequences) > -math.inf

    def log_probs(self, tokens: np.ndarray) -> np.ndarray:
        """log p(x_i = v | all known tokens) (B, T, V), for tokens (B, T) of which some are UNKNOWN.

        At a known position it is 0 for the known token and -inf for the others. ValueError naming the first
        row whose known tokens cannot stand together.
        """
        weights = self.weights(self._checked(tokens))
        total = weights.sum(2, keepdims=True)
        impossible = np.flatnonzero((total == 0).any(1))
        if len(impossible):
            raise ValueError(f"row {impossible[0]}: its known tokens cannot stand in one sequence")
        with np.errstate(divide="ignore"):
            return np.log(weights / total)

    def _checked(self, tokens: np.ndarray) -> np.ndarray:
        """`tokens` as int64. ValueError unless they are (B, T), UNKNOWN or in 0 .. V - 1."""
        tokens = np.asarray(tokens)
        if tokens.ndim != 2 or tokens.shape[1] != self.T:
            raise ValueError(f"tokens have the shape {tokens.shape}: give (B, {self.T})")
        outside = (tokens < UNKNOWN) | (tokens >= self.V)
        if outside.any():
            row, place = np.argwhere(outside)[0]
            raise ValueError(f"row {row}: token {tokens[row, place]} is not in 0 .. {self.V - 1}")
        return tokens.astype(np.int64)

    def _possible(self, tokens: np.ndarray) -> np.ndarray:
        """Which token could stand where, for all that the same position tells: (B, T, V) bool."""
        return (tokens[..., None] == np.arange(self.V)) | (tokens[..., None] == UNKNOWN)


class Chain(SequenceTask):
    """What a Markov chain shows whose states are hidden, each of which shows one token.

    first (N,)     p(state of the first place)
    step (N, N)    p(state after | state)
    token (N,)     what each state shows

    p(x_i | known) is by forward and backward sums over all paths (Rabiner 1989, section III). Each message is
    divided by its sum, and the logarithms of the sums are added up apart. Every term is positive, so nothing
    cancels; nothing underflows if float64 holds the least probable path (2^-1022).
    """

    def __init__(self, T: int, words: list[str], first: np.ndarray, step: np.ndarray, token: np.ndarray):
        super().__init__(T, words)
        self.first, self.step, self.token = first, step, token
        self.shows = (token[:, None] == np.arange(self.V)).astype(float)  # (N, V)

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        states = np.empty((n, self.T), np.int64)
        p = np.tile(self.first, (n, 1))
        for t in range(self.T):
            u = rng.random((n, 1)) * p.sum(1, keepdims=True)
            states[:, t] = (p.cumsum(1) <= u).sum(1)
            p = self.step[states[:, t]]
        return self.token[states]

    def log_evidence(self, tokens: np.ndarray) -> np.ndarray:
        """log p(known tokens) (B,) of rows (B, T) of which some are UNKNOWN; -inf where it is 0."""
        return self._past(self._fits(self._checked(tokens)))[1]

    def _log_prob(self, sequences: np.ndarray) -> np.ndarray:
        return self.log_evidence(sequences)

    def weights(self, tokens: np.ndarray) -> np.ndarray:
        fits = self._fits(tokens)
        past, _ = self._past(fits)
        future = np.ones_like(past[0])  # in proportion to p(known tokens after t | state at t)
        out = np.empty((len(tokens), self.T, self.V))
        for t in range(self.T - 1, -1, -1):
            out[:, t] = (past[t] * future) @ self.shows
            future, _ = _scaled((fits[t] * future) @ self.step.T)
        return out

    def _fits(self, tokens: np.ndarray) -> np.ndarray:
        """Which state could stand where, for all that the same place tells: (T, B, N) bool."""
        return np.moveaxis(self._possible(tokens), 1, 0)[:, :, self.token]

    def _past(self, fits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(p(state at t | known tokens up to t) (T, B, N), log p(known tokens) (B,)); 0 from where these
        cannot be."""
        past, log_p = np.empty(fits.shape), np.zeros(fits.shape[1])
        for t in range(self.T):
            before = past[t - 1] @ self.step if t else self.first
            past[t], log_sum = _scaled(fits[t] * before)
            log_p += log_sum
        return past, log_p


def _scaled(message: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(`message` (B, N) with rows that sum to 1, log of their sums (B,)); a row of zeros stays one."""
    total = message.sum(1, keepdims=True)
    with np.errstate(divide="ignore"):
        return message / np.where(total > 0, total, 1), np.log(total[:, 0])


def lines(task: SequenceTask, count: int, seed: tuple[int, ...]) -> Iterator[str]:
    """A split of `count` sequences as text, a space behind each, and the first word of one more: the last
    window needs a token behind it."""
    rng, left, words = np.random.default_rng(seed), count, np.array(task.words)
    while left:
        rows = task.sample(min(left, DRAWN), rng)
        for row in words[rows].tolist():
            yield " ".join(row) + " "
        left -= len(rows)
    yield task.words[task.sample(1, rng)[0, 0]]


@dataclass(frozen=True)
class Sequences:
    """The truth of whole sequences of a task, judged one by one: an labs.sequences.two_sided.TwoSided.

    The first `given` tokens of each are given; of a Chain that is.
    """

    task: SequenceTask
    given: int = 0

    def nats(self, texts: np.ndarray) -> np.ndarray:
        """-log p (n,) of sequences (n, T) given their first `given` tokens; inf for an impossible one."""
        parts = np.split(texts, range(JUDGED, len(texts), JUDGED))
        return np.concatenate([self._log_given(part) - self.task.log_prob(part) for part in parts])

    def _log_given(self, texts: np.ndarray) -> np.ndarray | float:
        """log p (n,) of what is given."""
        if not self.given:
            return 0.0
        assert isinstance(self.task, Chain)
        return self.task.log_evidence(np.where(np.arange(self.task.T) < self.given, texts, UNKNOWN))

    def log_probs(self, text: np.ndarray, asked: np.ndarray) -> np.ndarray:
        return self.task.log_probs(text)[asked]

    def judge(self, texts: np.ndarray) -> dict[str, float]:
        nats = self.nats(texts)
        valid = np.isfinite(nats)
        return {
            "validity": mean(valid),
            "true_nll": mean(nats[valid]) / (1 if self.given else self.task.T),
            "judged": len(texts),
        }


def mean(values: np.ndarray) -> float:
    """nan of none."""
    return float(values.mean()) if len(values) else float("nan")


class SequenceCorpus(GeneratedCorpus):
    """Sequences of a task whose distributions are known, back to back, with nothing between them.

    Windows of block_size = T are whole sequences. One token more stands at the end, as the last window needs
    it: it begins a sequence that is not there.
    """

    measure = "orders"  # sequences that stand apart from each other are no text
    exact: ClassVar[type[Sequences]] = Sequences  # the truth of a task

    @abstractmethod
    def task(self, source: str) -> SequenceTask:
        """The task with its exact distributions. `source` is the user's, or the record's."""

    def truth(self, source: str, length: int) -> Sequences | None:
        task = self.task(source)
        return self.exact(task, self.given(source)) if task.T == length else None

    def record(self, source: str) -> str:
        """`source` with all of its settings."""
        names, settings = self.read_source(source)
        return " ".join([*names, str(settings)])

    def contents(self, c: Any) -> Contents:
        task, settings = self.task(c.source), self.read_source(c.source)[1]
        splits = drawn_splits(partial(lines, task), settings, length=task.T, given=self.given(c.source))
        return Contents(self.record(c.source), splits, task.words)
