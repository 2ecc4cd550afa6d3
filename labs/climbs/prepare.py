"""Prepare climbs: sequences of 64 vertical rates, 8 seconds each, simulated or out of ADS-B records.

    python labs/climbs/prepare.py [--source="simulated seed=2 train=50000"] [--out=DIR] [--force]
    python labs/climbs/prepare.py --source=FILE

`simulated` has an exact distribution of any place given any others. FILE is a .json or .json.gz of ADS-B
records as the `traffic` library writes them: a list of records with timestamp (ms), icao24, callsign and
vertical_rate (ft/min). docs/climbs.md says what a climb is.

The first rate of a sequence is given. Sequences lie back to back, as those of labs/synthetic.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from data.settings import PrepareConfig
from runtime.door import Program

SIMULATED = "simulated"


@dataclass
class ClimbsConfig(PrepareConfig):
    # fmt: off
    tokenizer: str = "words"        # no other: the words are rates in ft/min
    source: str = SIMULATED         # simulated, then settings such as "seed=2"; or a file of ADS-B records
    # fmt: on

    def folder_name(self) -> str:
        return folder_name(self.tokenizer, self.source)


program = Program(__name__, __doc__, ClimbsConfig)

import hashlib
from collections.abc import Iterator
from functools import partial
from typing import ClassVar

import numpy as np

from data.corpus import Split, main, prepare_splits
from data.prepared import SPLITS
from data.sequences import Sequences
from data.sequences import lines as drawn
from data.settings import GeneratorSettings
from data.tokenizers import WordTokenizer
from labs.climbs.rates import LENGTH, STEP, WORDS
from labs.climbs.records import read_climbs, splits_of
from labs.climbs.simulated import Climbs
from runtime.configurator import cli
from runtime.errors import UserError

FOLDER = Path(__file__).resolve().parent
GIVEN = 1  # tokens at the start of a sequence: the rate at which the climb begins
MEASURE = "orders"  # rates are no text


@dataclass(frozen=True)
class Settings(GeneratorSettings):
    """What decides a simulated corpus. train, validation and test are in sequences."""

    corpus = "the simulated climbs"
    least: ClassVar[dict[str, int]] = {"seed": 0, "length": 2}
    most: ClassVar[dict[str, int]] = {"length": Climbs.LONGEST}

    seed: int = 1
    length: int = LENGTH  # tokens of a sequence
    train: int = 20_000
    validation: int = 1000
    test: int = 1000


def read_source(source: str) -> Settings | None:
    """The settings of simulated climbs; None where `source` is a file. UserError for wrong settings."""
    name, _, settings = (source.strip() or SIMULATED).partition(" ")
    return Settings.parse(settings) if name == SIMULATED else None


def climbs_of(source: str) -> Climbs | None:
    """The exact distributions of the climbs whose record says `source`; None where nobody knows them."""
    settings = read_source(source)
    return Climbs(settings.length) if settings else None


def given(source: str) -> int:
    return GIVEN


def truth(source: str, length: int) -> Sequences | None:
    """The truth of simulated climbs of `length` tokens; None for other windows, and for recorded climbs."""
    climbs = climbs_of(source)
    return Sequences(climbs, GIVEN) if climbs and climbs.T == length else None


def unusual(source: str) -> str:
    """The settings in the record of a prepared folder that are not the standard ones."""
    settings = read_source(source)
    return " ".join(settings.unusual()) if settings else ""


def folder_name(tokenizer: str, source: str) -> str:
    """Name of a prepared folder, see data.prepared.folder_of: words-simulated-seed=2, words-FILE."""
    settings = read_source(source)
    if settings is None:
        return f"{tokenizer}-{Path(source).expanduser().name.partition('.')[0]}"
    return "-".join([tokenizer, SIMULATED, *settings.unusual()])


def prepare(out: Path, tokenizer: str, source: str = "", force: bool = False) -> Path:
    """Simulate climbs, or cut them out of a file's records, into `out`; see data.corpus.prepare_splits."""
    if tokenizer != WordTokenizer.name:
        raise UserError(
            f"tokenizer = {tokenizer!r}: climbs are words, their rates: use {WordTokenizer.name!r}"
        )
    settings = read_source(source)
    if settings:
        source, splits = f"{SIMULATED} {settings}", simulated(settings)
    else:
        path = Path(source).expanduser().resolve()
        source, splits = str(path), recorded(path)
    return prepare_splits(Path(out), tokenizer, source, splits, force=force, own=WordTokenizer.of(WORDS))


def simulated(settings: Settings) -> dict[str, Split]:
    task = Climbs(settings.length)

    def lines(split: str) -> Iterator[str]:
        return drawn(task, getattr(settings, split), (settings.seed, 1 + SPLITS.index(split)))

    return {split: Split(partial(lines, split), length=settings.length, given=GIVEN) for split in SPLITS}


def recorded(path: Path) -> dict[str, Split]:
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
    return {name: of_rows(rows) for name, rows in windows.items()}


def of_rows(rows: np.ndarray) -> Split:
    digest = hashlib.sha256("".join(text(rows)).encode()).hexdigest()  # so that another file is refused
    return Split(partial(text, rows), sha256=digest, length=LENGTH, given=GIVEN)


def text(rows: np.ndarray) -> Iterator[str]:
    """Sequences as text, and the first word of one more, as Windows reads it."""
    for row in rows:
        yield " ".join([WORDS[i] for i in row]) + " "
    yield WORDS[rows[0, 0]]


@program
def command(c: ClimbsConfig) -> int:
    return main(prepare, FOLDER, c)


if __name__ == "__main__":
    cli(command)()
