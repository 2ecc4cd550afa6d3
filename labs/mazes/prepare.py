"""Prepare mazes: each sequence is a maze, then the same maze with a shortest path drawn in.

    python labs/mazes/prepare.py [--source="height=9 width=11 walls=4 seed=2"] [--out=DIR] [--force]

`--source` has the Settings that are not the standard ones, and so has the folder's name,
words-height=9-width=11-walls=4-seed=2. See labs.mazes.mazes for how mazes are drawn.

Sequences lie back to back: block_size is their length, twice the cells of a maze. The maze is given
(data.corpus.Split): first in every order, without a loss, never scored. One token more stands at the end, as
the last window needs it.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from data.settings import PrepareConfig
from runtime.door import Program


@dataclass
class MazesConfig(PrepareConfig):
    # fmt: off
    tokenizer: str = "words"        # no other: each kind of cell is a word
    source: str = ""                # settings such as "height=9 width=11 walls=4"; empty: the standard ones
    # fmt: on

    def folder_name(self) -> str:
        return folder_name(self.tokenizer, self.source)


program = Program(__name__, __doc__, MazesConfig)

from dataclasses import asdict
from functools import partial
from typing import ClassVar

import numpy as np

from data.corpus import Split, main, prepare_splits
from data.prepared import SPLITS
from data.sequences import lines
from data.settings import GeneratorSettings
from data.tokenizers import WordTokenizer
from data.tokens import open_tokens
from labs.mazes.mazes import WORDS, Answers, Mazes
from runtime.configurator import cli
from runtime.errors import UserError

FOLDER = Path(__file__).resolve().parent
MEASURE = "orders"  # with --samplers: cells are no text


@dataclass(frozen=True)
class Settings(GeneratorSettings):
    """What decides a corpus of mazes. train, validation and test are in mazes."""

    corpus = "the mazes"
    least: ClassVar[dict[str, int]] = {"height": 3, "width": 3, "walls": 0, "seed": 0}
    most: ClassVar[dict[str, int]] = {"height": 51, "width": 51, "walls": 625}

    height: int = 13  # cells
    width: int = 21
    walls: int = 15
    distance: int = 6  # steps from start to goal, at least
    seed: int = 1
    train: int = 100_000
    validation: int = 1000
    test: int = 1000

    def mazes(self) -> Mazes:
        """UserError for a side that is even."""
        return Mazes(self.height, self.width, self.walls, self.distance)


def mazes_of(source: str) -> Mazes:
    """The mazes with their exact distributions. `source` is the user's, or what the record of a prepared
    folder says."""
    return Settings.parse(source).mazes()


def given(source: str) -> int:
    """The cells of a maze, which its answer comes after."""
    return mazes_of(source).T // 2


def truth(source: str, length: int) -> Answers | None:
    """The truth of sequences of `length` tokens; None for windows of another length."""
    mazes = mazes_of(source)
    return Answers(mazes, mazes.T // 2) if mazes.T == length else None


def unusual(source: str) -> str:
    """The settings in the record of a prepared folder that are not the standard ones."""
    return " ".join(Settings.parse(source).unusual())


def folder_name(tokenizer: str, source: str) -> str:
    """Name of a prepared folder, see data.prepared.folder_of: words-walls=4. UserError for a wrong source."""
    return "-".join([tokenizer, *Settings.parse(source).unusual()])


def prepare(out: Path, tokenizer: str, source: str = "", force: bool = False) -> Path:
    """Generate a corpus of mazes into the folder `out`; see data.corpus.prepare_splits.

    source  settings, "key=number" with spaces between; the others have their defaults
    """
    if tokenizer != WordTokenizer.name:
        raise UserError(
            f"tokenizer = {tokenizer!r}: mazes are made of words for their cells: use {WordTokenizer.name!r}"
        )
    settings = Settings.parse(source)
    mazes = settings.mazes()
    mazes.sample(1, np.random.default_rng(0))  # what cannot be drawn is said before anything is written
    splits = {
        split: Split(
            partial(lines, mazes, asdict(settings)[split], (settings.seed, 1 + i)),
            length=mazes.T,
            given=given(source),
        )
        for i, split in enumerate(SPLITS)
    }
    own = WordTokenizer.of(WORDS)
    folder = prepare_splits(Path(out), tokenizer, str(settings), splits, force=force, own=own)
    print(f"{repeated(folder):.1%} of the mazes of the test split are in the train split", file=sys.stderr)
    return folder


def repeated(folder: Path) -> float:
    """The share of the test split's mazes, whatever their answers, that the train split has, too."""
    train, test = (_mazes_in(folder / f"{split}.bin") for split in ("train", "test"))
    return float(np.isin(test, train).mean())


def _mazes_in(path: Path) -> np.ndarray:
    """The mazes of a split (n,), each as one value."""
    tokens = open_tokens(path)
    length, given = tokens.info["length"], tokens.info["given"]
    rows = tokens.ids[: len(tokens.ids) // length * length].reshape(-1, length)[:, :given]
    return np.ascontiguousarray(rows).view(f"V{given * rows.itemsize}").ravel()


@program
def command(c: MazesConfig) -> int:
    return main(prepare, FOLDER, c)


if __name__ == "__main__":
    cli(command)()
