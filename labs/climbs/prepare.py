"""Prepare climbs: sequences of 64 vertical rates, 8 seconds each, simulated or out of ADS-B records.

    python labs/climbs/prepare.py [--source="simulated seed=2 train=50000"] [--out=DIR] [--force]
    python labs/climbs/prepare.py --source=FILE

`simulated` has an exact distribution of any place given any others. FILE is a .json or .json.gz of ADS-B
records as the `traffic` library writes them: a list of records with timestamp (ms), icao24, callsign and
vertical_rate (ft/min). README.md of this lab says what a climb is.

The first rate of a sequence is given. Sequences lie back to back, as those of labs/synthetic.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from common.config import cli, read
from common.files import real_path
from data.prepare.corpus import Contents, PrepareConfig, Split
from labs.climbs.rates import LENGTH, STEP, WORDS
from labs.climbs.records import read_climbs, splits_of
from labs.climbs.simulated import Climbs
from labs.sequences.exact import SequenceCorpus, Sequences
from labs.sequences.settings import GeneratorSettings

SIMULATED = "simulated"


@dataclass
class ClimbsPrepareConfig(PrepareConfig):
    # fmt: off
    tokenizer: str = "words"        # no other: the words are rates in ft/min
    source: str = SIMULATED         # simulated, then settings such as "seed=2"; or a file of ADS-B records
    # fmt: on


GIVEN = 1  # tokens at the start of a sequence: the rate at which the climb begins


@dataclass(frozen=True)
class ClimbSettings(GeneratorSettings):
    """What decides a simulated corpus. train, validation and test are in sequences."""

    corpus = "the simulated climbs"
    least: ClassVar[dict[str, int]] = {"seed": 0, "length": 2}
    most: ClassVar[dict[str, int]] = {"length": Climbs.LONGEST}

    seed: int = 1
    length: int = LENGTH  # tokens of a sequence
    train: int = 20_000
    validation: int = 1000
    test: int = 1000


class ClimbCorpus(SequenceCorpus):
    """Simulated climbs, or those that a file has, of which nobody knows the distributions."""

    def read_source(self, source: str) -> tuple[list[str], ClimbSettings]:
        _, _, settings = source.strip().partition(" ")
        return [SIMULATED], self.settings.parse(settings)

    def task(self, source: str) -> Climbs:
        _, settings = self.read_source(source)
        return Climbs(settings.length)

    def given(self, source: str) -> int:
        return GIVEN

    def truth(self, source: str, length: int) -> Sequences | None:
        return super().truth(source, length) if is_simulated(source) else None

    def folder_name(self, tokenizer: str, source: str) -> str:
        if is_simulated(source):
            return super().folder_name(tokenizer, source)
        return f"{tokenizer}-{Path(source).expanduser().name.partition('.')[0]}"

    def same_source(self, asked: str, recorded: str) -> bool:
        if is_simulated(asked) and is_simulated(recorded):
            return super().same_source(asked, recorded)
        return recorded == str(real_path(asked))

    def files(self, c: ClimbsPrepareConfig) -> list[Path]:
        return [path for path in [real_path(c.source)] if not is_simulated(c.source) and path.is_file()]

    def contents(self, c: ClimbsPrepareConfig) -> Contents:
        if is_simulated(c.source):
            return super().contents(c)
        path = real_path(c.source)
        return Contents(str(path), recorded_splits(path), WORDS)


def is_simulated(source: str) -> bool:
    """Whether `source` is settings of simulated climbs, and not a file."""
    return (source.strip() or SIMULATED).partition(" ")[0] == SIMULATED


def recorded_splits(path: Path) -> dict[str, Split]:
    """UserError for a file that is not whole, is no list of records or has too few climbs."""
    climbs = read_climbs(path)
    windows = splits_of(path, climbs)
    seconds = sum(len(climb.rates) for climb in climbs) * STEP
    filled = sum(climb.filled for climb in climbs)
    print(
        f"{path.name}: {len(climbs)} climbs of {len({c.aircraft for c in climbs})} aircraft; {filled:,} of "
        f"their {seconds:,} seconds have no rate of their own and are filled in",
        file=sys.stderr,
    )
    return {name: recorded_split(rows) for name, rows in windows.items()}


def recorded_split(rows: np.ndarray) -> Split:
    return Split(partial(row_lines, rows), length=LENGTH, given=GIVEN)


def row_lines(rows: np.ndarray) -> Iterator[str]:
    """Sequences as text, and the first word of one more, as Windows reads it."""
    for row in rows:
        yield " ".join([WORDS[i] for i in row]) + " "
    yield WORDS[rows[0, 0]]


corpus = ClimbCorpus(__file__, ClimbsPrepareConfig, ClimbSettings)


def main(argv: list[str]) -> int:
    return corpus.command(read(ClimbsPrepareConfig, argv, __doc__))


if __name__ == "__main__":
    cli(main)
