"""Orders of a sequence: paths along its places, and which of them are hidden.

A path is a permutation of the places 0, ..., T - 1: the first is predicted from nothing, each other one from
those before it. Source: Pannatier, Courdier, Fleuret 2024, arXiv 2404.09562 (sigma-GPT).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np


@lru_cache(maxsize=8)
def fractal(T: int) -> np.ndarray:
    """The middle, then the middles of the two halves, and so on, level by level. Source: sec. 2.5."""
    path, level = [], [(0, T)]
    while level:
        path += [(a + b) // 2 for a, b in level]
        halves = [half for a, b in level for half in ((a, (a + b) // 2), ((a + b) // 2 + 1, b))]
        level = [(a, b) for a, b in halves if a < b]
    return np.array(path)


# name -> the path (T,) of a sequence
ORDERS: dict[str, Callable[[int, np.random.Generator], np.ndarray]] = {
    "left_to_right": lambda T, rng: np.arange(T),
    "random": lambda T, rng: rng.permutation(T),  # each of the T! paths with the same probability
    "fractal": lambda T, rng: fractal(T),
}


@dataclass(frozen=True)
class Order:
    """The order of each sequence at each step of a training.

    With a `curriculum` the share `share` of the sequences has at first that order, the others have `name`;
    it falls linearly to 0 at step `steps`. Source: sec. 3.3, where they begin from left to right. With
    "few_hidden", of masked diffusion, at most that share of the places is hidden at first; it rises to 1.
    """

    name: str = "left_to_right"
    curriculum: str = ""  # none
    share: float = 0.5
    steps: int = 1
    seed: int = 0

    def generators(self, step: int, rows: np.ndarray) -> list[np.random.Generator]:
        """A generator for each of the sequences that are number `rows` (B,) of a step's batch: a pure
        function of the seed, the step and that number."""
        return [np.random.default_rng((self.seed, 1, step, i)) for i in rows.tolist()]

    def paths(self, step: int, rows: np.ndarray, T: int, given: int = 0) -> np.ndarray:
        """Paths (B, T) of the sequences that are number `rows` (B,) of a step's batch. The first `given`
        places come first, from left to right; the order is that of the others."""
        share = self.share * max(0.0, 1 - step / self.steps)  # of the sequences, by the curriculum

        def path(rng: np.random.Generator) -> np.ndarray:
            by_curriculum = self.curriculum and rng.random() < share
            rest = ORDERS[self.curriculum if by_curriculum else self.name](T - given, rng)
            return np.concatenate((np.arange(given), given + rest))

        return np.stack([path(rng) for rng in self.generators(step, rows)])

    def hidden(self, step: int, rows: np.ndarray, batch: int, T: int) -> tuple[np.ndarray, np.ndarray]:
        """(k, weight): how many of T places are hidden in each of the sequences that are number `rows` (B,)
        of a step's `batch`, and the weight of each loss there.

        k is uniform from 1 to T, or to the curriculum's share of T, and spread evenly over the batch, which
        takes noise off the gradient. The mean over k of T / k times the sum of the losses is the NELBO of
        masked diffusion; under the curriculum every hidden place counts the same. Sources: Kingma et al.
        2021, arXiv 2107.00630, app. I.1; Ou et al. 2024, 2406.03736, eq. 14; Sahoo et al. 2024, 2406.07524.
        """
        even = self.curriculum and step < self.steps
        most = T if not even else max(1, round(T * (self.share + (1 - self.share) * step / self.steps)))
        first = np.random.default_rng((self.seed, 2, step)).integers(batch * most)
        k = 1 + (first + rows * most) % (batch * most) // batch
        return k, np.full(len(k), 2 * T / (most + 1)) if even else T / k
