"""The sequences of sigma-GPTs (arXiv 2404.09562) whose distributions are known, whatever else is known.

    product      each token is 1 with probability .1, for itself               section 3.1
    step         zeros, with one run of 10 ones; each place is equally likely  section 3.1
    permutation  each of T classes once; each order is equally likely          section 3.1 ("joint law")
    walk         a lazy random walk from one of four starts                    appendix 0.A

Each is a labs.sequences.exact.SequenceTask, so a perfect any-order model of itself.
"""

import math
from collections.abc import Callable

import numpy as np

from common.errors import UserError
from labs.sequences.exact import UNKNOWN, Chain, SequenceTask


class Product(SequenceTask):
    """Independent tokens, each 1 with probability `rate`."""

    def __init__(self, T: int, rate: float = 0.1):
        super().__init__(T, ["0", "1"])
        self.p = np.array([1 - rate, rate])

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        return (rng.random((n, self.T)) < self.p[1]).astype(np.int64)

    def _log_prob(self, sequences: np.ndarray) -> np.ndarray:
        return np.log(self.p)[sequences].sum(1)

    def weights(self, tokens: np.ndarray) -> np.ndarray:
        return self._possible(tokens) * self.p


class StepFunction(SequenceTask):
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
        possible = (self._contradictions(sequences) == 0).any(1)
        return np.where(possible, -math.log(len(self.sequences)), -math.inf)

    def _contradictions(self, tokens: np.ndarray) -> np.ndarray:
        """In how many known tokens each row differs from each sequence: (B, places)."""
        ones = self.sequences.astype(float)
        return (tokens == 1) @ (1 - ones).T + (tokens == 0) @ ones.T

    def weights(self, tokens: np.ndarray) -> np.ndarray:
        fits = (self._contradictions(tokens) == 0).astype(float)
        ones = fits @ self.sequences  # (B, T) how many of the sequences that fit have a 1 there
        return np.stack((fits.sum(1, keepdims=True) - ones, ones), 2)


class Permutation(SequenceTask):
    """Each of T classes once, in each order with the same probability."""

    def __init__(self, T: int):
        super().__init__(T, [str(i) for i in range(T)])

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        return rng.permuted(np.tile(np.arange(self.T), (n, 1)), axis=1)

    def _log_prob(self, sequences: np.ndarray) -> np.ndarray:
        each_once = (np.sort(sequences, 1) == np.arange(self.T)).all(1)
        return np.where(each_once, -math.lgamma(self.T + 1), -math.inf)

    def weights(self, tokens: np.ndarray) -> np.ndarray:
        known = tokens[..., None] == np.arange(self.V)
        times = known.sum(1)  # (B, V) how often each class is known
        free = (times == 0)[:, None] & (tokens == UNKNOWN)[..., None]
        return (known | free) * (times <= 1).all(1)[:, None, None].astype(float)


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
TASKS: dict[str, Callable[[int], SequenceTask]] = {
    "product": Product,
    "step": StepFunction,
    "permutation": Permutation,
    "walk": Walk,
}
