"""The sequences of sigma-GPTs (arXiv 2404.09562) whose distributions are known, whatever else is known.

    product      each token is 1 with probability .1, for itself               section 3.1
    step         zeros, with one run of 10 ones; each place is equally likely  section 3.1
    permutation  each of T classes once; each order is equally likely          section 3.1 ("joint law")
    walk         a lazy random walk from one of four starts                    appendix 0.A

A task answers p(x_i = v | the known tokens) exactly, so it is a perfect any-order model of itself. Arrays are
float64 and int64; an unknown token is UNKNOWN.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from runtime.errors import UserError

UNKNOWN = -1


class BurstSteps(NamedTuple):
    """How many passes the paper's burst sampler needs with a perfect model and the best of all orders.

    By the paper's appendix 0.B. With few random orders it takes more.
    """

    mean: float
    std: float
    at_most: bool = False  # whether `mean` is a bound: the paper's argument gives no more


class Task(ABC):
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
    def _weights(self, tokens: np.ndarray) -> np.ndarray:
        """In proportion to p(x_i = v | known tokens) (B, T, V); for an impossible row all 0 at some i."""

    def burst_steps(self) -> BurstSteps | None:
        """Of a perfect model; None where the paper gives no figure."""
        return None

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
        weights = self._weights(self._checked(tokens))
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


class Product(Task):
    """Independent tokens, each 1 with probability `rate`."""

    def __init__(self, T: int, rate: float = 0.1):
        super().__init__(T, ["0", "1"])
        self.p = np.array([1 - rate, rate])

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        return (rng.random((n, self.T)) < self.p[1]).astype(np.int64)

    def _log_prob(self, sequences: np.ndarray) -> np.ndarray:
        return np.log(self.p)[sequences].sum(1)

    def _weights(self, tokens: np.ndarray) -> np.ndarray:
        return self._possible(tokens) * self.p

    def burst_steps(self) -> BurstSteps:
        """1: what is known changes nothing, so every token is accepted."""
        return BurstSteps(1.0, 0.0)


class Step(Task):
    """Zeros with one run of `run` ones, at each of the T - run + 1 places with the same probability."""

    def __init__(self, T: int, run: int = 10):
        if T < run:
            raise UserError(f"length = {T}: a step of {run} ones does not fit: use at least {run}")
        super().__init__(T, ["0", "1"])
        places = T - run + 1
        at = np.arange(T) - np.arange(places)[:, None]
        self.sequences = ((at >= 0) & (at < run)).astype(np.int64)  # (places, T), all that there are

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        return self.sequences[rng.integers(len(self.sequences), size=n)]

    def _log_prob(self, sequences: np.ndarray) -> np.ndarray:
        found = (self._contradictions(sequences) == 0).any(1)
        return np.where(found, -math.log(len(self.sequences)), -math.inf)

    def _contradictions(self, tokens: np.ndarray) -> np.ndarray:
        """In how many known tokens each row differs from each sequence: (B, places)."""
        ones = self.sequences.astype(float)
        return (tokens == 1) @ (1 - ones).T + (tokens == 0) @ ones.T

    def _weights(self, tokens: np.ndarray) -> np.ndarray:
        fits = (self._contradictions(tokens) == 0).astype(float)
        ones = fits @ self.sequences  # (B, T) how many of the sequences that fit have a 1 there
        return np.stack((fits.sum(1, keepdims=True) - ones, ones), 2)

    def burst_steps(self) -> BurstSteps:
        """At most 3 (0.B.3): a one, or the gap that is left for the ones; the place of the step; the rest."""
        return BurstSteps(3.0, 0.0, at_most=True)


class Permutation(Task):
    """Each of T classes once, in each order with the same probability."""

    def __init__(self, T: int):
        super().__init__(T, [str(i) for i in range(T)])

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        return rng.permuted(np.tile(np.arange(self.T), (n, 1)), axis=1)

    def _log_prob(self, sequences: np.ndarray) -> np.ndarray:
        each_once = (np.sort(sequences, 1) == np.arange(self.T)).all(1)
        return np.where(each_once, -math.lgamma(self.T + 1), -math.inf)

    def _weights(self, tokens: np.ndarray) -> np.ndarray:
        known = tokens[..., None] == np.arange(self.V)
        times = known.sum(1)  # (B, V) how often each class is known
        free = (times == 0)[:, None] & (tokens == UNKNOWN)[..., None]
        return (known | free) * (times <= 1).all(1)[:, None, None].astype(float)

    def burst_steps(self) -> BurstSteps:
        """A chain over the number of tokens left, m: a pass draws m times out of m classes, and the best
        order accepts as many tokens as there are different classes among them (0.B.4, eq. 9)."""
        mean, square = np.zeros(self.T + 1), np.zeros(self.T + 1)  # of the number of passes, for each m
        for m in range(1, self.T + 1):
            p = distinct(m, m)[m:0:-1]  # p[left]: of m - left classes. At least one is accepted
            left = slice(0, m)
            mean[m] = 1 + p @ mean[left]
            square[m] = 1 + p @ (2 * mean[left] + square[left])
        variance = max(0.0, square[-1] - mean[-1] ** 2)
        return BurstSteps(float(mean[-1]), math.sqrt(variance))


def distinct(draws: int, classes: int) -> np.ndarray:
    """P(k different classes in `draws` uniform ones out of `classes`), k = 0 .. classes: (classes + 1,).

    The paper's eq. 9, (classes choose k) k! S(draws, k) / classes^draws with Stirling numbers of the
    second kind S, draw by draw: without its huge numbers.
    """
    k = np.arange(classes + 1)
    p = (k == 0).astype(float)
    for _ in range(draws):
        seen_before = p * k / classes
        p = seen_before + np.concatenate(([0.0], p[:-1] * (classes - k[:-1]) / classes))
    return p


class Chain(Task):
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

    def _weights(self, tokens: np.ndarray) -> np.ndarray:
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


class Walk(Chain):
    """A lazy random walk: X_0 is one of `starts`, each step is +1 or -1 with 2/5 each and 0 with 1/5.

    Token v is the value v + low. The first token of a sequence is X_0. The least path of 400 tokens has the
    probability 2^-929, which float64 still holds.
    """

    LONGEST = 400

    def __init__(self, T: int, starts: tuple[int, ...] = (100, 120, 130, 140)):
        if T > self.LONGEST:
            raise UserError(f"length = {T}: probabilities of a walk underflow: use at most {self.LONGEST}")
        self.low = min(starts) - (T - 1)
        words = [str(value) for value in range(self.low, max(starts) + T)]
        self.starts = np.array(starts) - self.low
        self.moves = {-1: 2 / 5, 0: 1 / 5, 1: 2 / 5}
        V = len(words)
        first = np.bincount(self.starts, minlength=V) / len(starts)  # p(x_0 = v) (V,)
        step = sum(p * np.eye(V, k=move) for move, p in self.moves.items())
        super().__init__(T, words, first, np.asarray(step), np.arange(V))

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        start = self.starts[rng.integers(len(self.starts), size=(n, 1))]
        steps = rng.choice(list(self.moves), size=(n, self.T - 1), p=list(self.moves.values()))
        return np.concatenate((start, start + np.cumsum(steps, 1)), 1)


# what makes each of a length
TASKS: dict[str, Callable[[int], Task]] = {
    "product": Product,
    "step": Step,
    "permutation": Permutation,
    "walk": Walk,
}
