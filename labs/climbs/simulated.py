"""Simulated climbs whose distribution is known, whatever part of one is known.

A hidden Markov chain. Its state is the phase of the climb, the aircraft's performance and the vertical rate,
of which the rate alone is seen. A step is 8 seconds: first the phase changes or not, then the rate moves
towards the phase's target, with noise. The noise is cut off, so that not every sequence is a climb.

The numbers are chosen by eye, to look like departures that were recorded: two minutes at the start, a minute
of shallow climb in which the aircraft accelerates, the climb itself, its shallower upper part, and levels, at
the top or on the way. Not from sigma-GPTs, which have no simulated climbs.
"""

from typing import NamedTuple

import numpy as np

from common.errors import UserError
from labs.climbs.rates import RATES, WORDS
from labs.sequences.exact import Chain


class Phase(NamedTuple):
    target: float  # ft/min, of an aircraft of middling performance
    pull: float  # share of the way to the target in a step
    noise: float  # standard deviation of a step, ft/min
    after: dict[str, float]  # phase -> its probability at the next step; the rest stays


PHASES = {
    "initial": Phase(2300, 0.3, 220, {"accelerate": 0.08}),
    "accelerate": Phase(1100, 0.35, 150, {"climb": 0.12}),
    "climb": Phase(2700, 0.25, 280, {"high": 0.025, "level": 0.015}),
    "high": Phase(1600, 0.25, 160, {"level": 0.03}),
    "level": Phase(0, 0.45, 60, {"high": 0.05}),
}
PERFORMANCES = (0.7, 1.0, 1.3)  # what an aircraft's targets are multiplied with, each as likely
FIRST_NOISE = 400  # ft/min, of the first rate of all
CUT = 2.5  # standard deviations at which noise is cut off


class Climbs(Chain):
    """Climbs of T rates. State number (performance * phases + phase) * V + rate."""

    LONGEST = 100  # the least probable path has 2^-930, which float64 holds

    def __init__(self, T: int):
        if T > self.LONGEST:
            raise UserError(f"length = {T}: probabilities of a climb underflow: use at most {self.LONGEST}")
        names, V = list(PHASES), len(RATES)
        shape = (len(PERFORMANCES), len(names), V)
        step, first = np.zeros(shape + shape), np.zeros(shape)
        for c, performance in enumerate(PERFORMANCES):
            first[c, 0] = near(np.array([PHASES["initial"].target * performance]), FIRST_NOISE)[0]
            for q, name in enumerate(names):
                after = PHASES[name].after
                for to, p in ((name, 1 - sum(after.values())), *after.items()):
                    phase = PHASES[to]
                    mean = RATES + phase.pull * (phase.target * performance - RATES)
                    step[c, q, :, c, names.index(to)] = p * near(mean, phase.noise)
        N = first.size
        super().__init__(T, WORDS, first.ravel() / len(PERFORMANCES), step.reshape(N, N), np.arange(N) % V)


def near(mean: np.ndarray, noise: float) -> np.ndarray:
    """p(rate) (n, V) of a normal around each `mean` (n,), ft/min, cut off on both sides. A bin is its middle;
    one lies within the cut as long as CUT noise is at least half a bin."""
    z = (RATES - mean[:, None]) / noise
    p = np.exp(-(z**2) / 2) * (np.abs(z) <= CUT)
    return p / p.sum(1, keepdims=True)
