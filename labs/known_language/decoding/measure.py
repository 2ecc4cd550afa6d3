"""The decoding measure: what a temperature and the cuts of a next-token distribution do to its distance from
the truth, for models of the known language.

At each position p is the truth, and q what a cut leaves of the model's distribution at its temperature,
normalised. Each sampler, alone or after a temperature, is measured at all its VALUES: on the validation
split, where a value is chosen, and on the test split, where it is judged. The positions are some of those of
the truth measure.

tv         total variation distance of q from p
js         Jensen-Shannon divergence of q and p, nats; KL(p, q) is infinite once a valid word is cut
brier      sum of (q - p)^2: how far q is above the truth's own Brier score
forbidden  q's mass on words that the language forbids
lost       p's mass on words that q cannot draw
entropy    of q, nats
"""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from common.config import Field, Positive
from evaluate.decoding import Decoding, truncate
from evaluate.scoring import evenly_spread
from labs.known_language.library import Block, Model, blocks_of
from labs.known_language.recovery import document_windows
from labs.known_language.truth.measure import LanguageConfig, LanguageMeasure, LanguageSession, LoadedRun
from tables.measure import NamedRun
from tables.store import Row
from tables.summary import grouped
from tables.views import View, mean, problems, table

Temperature = Annotated[float, Field(gt=0)]
NUMBERS = ("tv", "js", "brier", "forbidden", "lost", "entropy")
# cut -> its values, the mildest last
VALUES: dict[str, list[float]] = {
    "top_k": [20, 50, 100, 200, 400, 800, 1600],
    "top_p": [0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998],
    "min_p": [0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0005, 0.0002],
}
ALONE = [0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2]  # temperatures without a cut
SHARES = (1.0, 0.9)  # of the truth's entropy, at which samplers are compared


@dataclass
class DecodingConfig(LanguageConfig):
    # fmt: off
    temperatures: list[Temperature] = field(default_factory=lambda: [1.0, 1.5])  # before each cut
    windows: Positive = 16          # of each split, evenly spread
    # fmt: on

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"alone": ALONE, "cuts": VALUES}


def point_settings(
    temperatures: list[float], alone: list[float], cuts: dict[str, list[float]]
) -> list[dict[str, Any]]:
    """The settings of each point: temperatures alone, then each cut after each of `temperatures`."""
    out: list[dict[str, Any]] = [{"temperature": t} for t in sorted({*alone, *temperatures})]
    after = [(t, cut) for t in temperatures for cut in cuts]
    return out + [{"temperature": t, cut: value} for t, cut in after for value in cuts[cut]]


# -----------------------------------------------------------------------------
# The numbers


def position_numbers(q: Tensor, p: Tensor) -> dict[str, Tensor]:
    """NUMBERS (N,) at some positions, of q against p, (N, V) each."""
    entropy, dot = lambda x: torch.special.entr(x).sum(1), torch.linalg.vecdot
    return {
        "tv": (q - p).abs().sum(1) / 2,
        # clamped, since rounding may carry it below 0
        "js": (entropy((p + q) / 2) - (entropy(p) + entropy(q)) / 2).clamp(min=0),
        "brier": (q - p).square().sum(1),
        "forbidden": dot(q, (p == 0).to(q)),
        "lost": dot(p, (q == 0).to(q)),
        "entropy": entropy(q),
    }


@torch.no_grad()
def average_numbers(
    blocks: Iterator[Block], true: Callable[[np.ndarray], np.ndarray], points: list[dict[str, Any]]
) -> dict[str, list[float]]:
    """NUMBERS of each point, means over the positions of `blocks`; `true`: positions (n,) -> p (n, V)."""
    sums, count = {key: np.zeros(len(points)) for key in NUMBERS}, 0
    for at, log_m in blocks:
        ps = torch.from_numpy(true(at)).to(log_m)
        for log_part, p in zip(log_m.split(32), ps.split(32)):  # which stay in the cache of a core
            for i, c in enumerate(points):
                for key, value in position_numbers(truncate(log_part, Decoding(**c)), p).items():
                    sums[key][i] += value.sum().item()
        count += len(at)
    return {key: [float(f"{round(x, 9):.5g}") for x in (s / count).tolist()] for key, s in sums.items()}


# -----------------------------------------------------------------------------
# The runs


class DecodingSession(LanguageSession):
    def __init__(self, c: DecodingConfig):
        super().__init__(c, ("validation", "test"))
        self.settings |= self.hashes

    def references(self) -> list[Row]:
        """The truth as a model: what a cut takes from it."""
        return [{"name": "truth", **self._both(self.languages["test"].log_probs)}]

    def numbers(self, subject: NamedRun) -> Row:
        """Of each split the numbers at each point of `grid`."""
        return self._both(LoadedRun(subject, self))

    def _both(self, model: Model) -> Row:
        out, points = {}, point_settings(self.c.temperatures, ALONE, VALUES)
        for split, language in self.languages.items():
            machine, ids = language.machine, getattr(language, split)
            states, ends = machine.parse_stream(ids), np.flatnonzero(ids == machine.end)
            plan = evenly_spread(document_windows(ends, self.block_size), self.c.windows)
            blocks = blocks_of(model, ids, plan, self.block_size, 16, machine.V)
            out[split] = average_numbers(blocks, lambda at: machine.probs(states[at]), points)
        return out


# -----------------------------------------------------------------------------
# What the rows of a training say


class Points:
    """The runs of one training: what each sampler does, a number of each seed."""

    def __init__(self, runs: list[Row]):
        self.runs, self.settings = runs, runs[0]["settings"]
        self.points = point_settings(*(self.settings[key] for key in ("temperatures", "alone", "cuts")))

    def values(self, point: int, key: str = "tv", split: str = "test") -> list[float]:
        """One of NUMBERS at a point."""
        return [run[split][key][point] for run in self.runs]

    def of(self, sampler: str, temperature: float) -> list[int]:
        """The points of a cut after a temperature, without any first; or of temperatures alone."""
        if sampler == "temperature":
            return [i for i, c in enumerate(self.points) if len(c) == 1]
        cut = [i for i, c in enumerate(self.points) if sampler in c and c["temperature"] == temperature]
        return [self.points.index({"temperature": temperature}), *cut]

    def best(self, sampler: str, temperature: float = 1.0) -> int:
        """The point of least TV on the validation split, mean over the runs."""
        tv = {i: statistics.fmean(self.values(i, "tv", "validation")) for i in self.of(sampler, temperature)}
        return min(tv, key=tv.__getitem__)

    def at_entropy(self, sampler: str, temperature: float, entropy: float) -> list[float]:
        """TV where the sampler leaves this entropy, interpolated between its points; [] if a run cannot have
        it."""
        at, out = self.of(sampler, temperature), []
        for run in self.runs:
            h, tv = zip(*sorted((run["test"]["entropy"][i], run["test"]["tv"][i]) for i in at))
            if not h[0] <= entropy <= h[-1]:
                return []
            out.append(float(np.interp(entropy, h, tv)))
        return out


# -----------------------------------------------------------------------------
# The measure


def best_lines(name: str, g: Points, temperature: float) -> list[list[str]]:
    """No cut, then each sampler at the value that is best for the row; - where that is no cut."""
    samplers = ["temperature"] * (temperature == 1) + [*g.settings["cuts"]]
    chosen = [("none", g.of("none", temperature)[0]), *((s, g.best(s, temperature)) for s in samplers)]
    setting = lambda i, s: f"{g.points[i][s]:g}" if s in g.points[i] else "-"
    return [[name, s, setting(i, s), *(mean(g.values(i, key)) for key in NUMBERS)] for s, i in chosen]


class DecodingMeasure(LanguageMeasure):
    definition = 3
    name, config, session = "decoding", DecodingConfig, DecodingSession

    def view(self, rows: list[Row]) -> View:
        """Each row's samplers at their best values, and TV at equal entropy."""
        sound, parts = [row for row in rows if "test" in row], list[Any]()
        groups = {name: Points(runs) for name, runs in grouped(sound).items()}
        for truth in [Points([row]) for row in sound if row.get("reference")]:
            temperatures, cuts = truth.settings["temperatures"], truth.settings["cuts"]
            for t in temperatures:
                each = [*groups.items(), ("truth", truth)]
                lines = [line for name, g in each for line in best_lines(name, g, t)]
                parts += [f"### After temperature {t:g}", table(["", "sampler", "value", *NUMBERS], lines)]
            samplers = [("temperature", 1.0), *((s, t) for t in temperatures for s in cuts)]
            for share in SHARES:
                h = share * truth.values(truth.of("none", 1.0)[0], "entropy")[0]
                lines = [
                    [f"{s} after {t:g}", *(mean(g.at_entropy(s, t, h)) for g in groups.values())]
                    for s, t in samplers
                ]
                title = f"### TV where {share:.0%} of the truth's entropy is left, {h:.3f} nats"
                parts += [title, table(["", *groups], lines)]
        return View([*parts, problems(rows)])


MEASURE = DecodingMeasure()
