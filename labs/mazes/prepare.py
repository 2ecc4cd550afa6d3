"""Prepare mazes: each sequence is a maze, then the same maze with a shortest path drawn in.

    python labs/mazes/prepare.py [--source="height=9 width=11 walls=4 seed=2"] [--out=DIR] [--force]

`--source` has the settings that are not the standard ones, and so has the folder's name,
words-height=9-width=11-walls=4-seed=2. See labs.mazes.mazes for how mazes are drawn.

Sequences lie back to back: block_size is their length, twice the cells of a maze. The maze is given
(data.prepare.corpus.Split): first in every order, without a loss, never scored.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from common.config import cli, read
from data.prepare.corpus import Contents, PrepareConfig
from data.tokens import TokenFile
from labs.mazes.mazes import Answers, Mazes
from labs.sequences.exact import SequenceCorpus
from labs.sequences.settings import GeneratorSettings


@dataclass
class MazesPrepareConfig(PrepareConfig):
    # fmt: off
    tokenizer: str = "words"        # no other: each kind of cell is a word
    source: str = ""                # settings such as "height=9 width=11 walls=4"; empty: the standard ones
    # fmt: on


@dataclass(frozen=True)
class MazeSettings(GeneratorSettings):
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


class MazeCorpus(SequenceCorpus):
    exact = Answers

    def task(self, source: str) -> Mazes:
        s = self.settings.parse(source)
        return Mazes(s.height, s.width, s.walls, s.distance)

    def given(self, source: str) -> int:
        """The cells of a maze, which its answer comes after."""
        return self.task(source).T // 2

    def contents(self, c: MazesPrepareConfig) -> Contents:
        # mazes that cannot be drawn are refused before anything is written
        self.task(c.source).sample(1, np.random.default_rng(0))
        return super().contents(c)._replace(finish=report_repeated)


def report_repeated(splits: Mapping[str, TokenFile]) -> None:
    """Says how many of the test split's mazes, whatever their answers, the train split has, too."""
    train, test = (_mazes_in(splits[split]) for split in ("train", "test"))
    share = np.isin(test, train).mean()
    print(f"{share:.1%} of the mazes of the test split are in the train split", file=sys.stderr)


def _mazes_in(tokens: TokenFile) -> np.ndarray:
    """The mazes of a split (n,), each as one value."""
    length, given = tokens.info["length"], tokens.info["given"]
    rows = tokens.ids[: len(tokens.ids) // length * length].reshape(-1, length)[:, :given]
    return np.ascontiguousarray(rows).view(f"V{given * rows.itemsize}").ravel()


corpus = MazeCorpus(__file__, MazesPrepareConfig, MazeSettings)


def main(argv: list[str]) -> int:
    return corpus.command(read(MazesPrepareConfig, argv, __doc__))


if __name__ == "__main__":
    cli(main)
