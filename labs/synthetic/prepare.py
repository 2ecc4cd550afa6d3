"""Prepare a synthetic task: sequences of 100 tokens whose exact distributions are known.

    python labs/synthetic/prepare.py [--source="walk seed=2 train=50000"] [--out=DIR] [--force]

`--source` is a task of labs.synthetic.tasks, product, step, permutation or walk, and settings of it. The
folder has both in its name, words-walk-seed=2-train=50000, so that several stand side by side.

Sequences lie back to back, with nothing between them: windows of block_size = 100 are whole sequences.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from common.config import cli, read
from common.errors import UserError
from data.prepare.corpus import PrepareConfig
from labs.sequences.exact import SequenceCorpus, SequenceTask
from labs.sequences.settings import GeneratorSettings
from labs.synthetic.tasks import TASKS

DEFAULT = "product"


@dataclass
class SyntheticConfig(PrepareConfig):
    # fmt: off
    tokenizer: str = "words"        # no other: the distributions are over the task's own words
    source: str = DEFAULT           # product, step, permutation or walk, then settings such as "seed=2"
    # fmt: on


@dataclass(frozen=True)
class SyntheticSettings(GeneratorSettings):
    """What decides a task's corpus, beside the task. train, validation and test are in sequences."""

    corpus = "the synthetic tasks"
    least: ClassVar[dict[str, int]] = {"seed": 0, "length": 2}
    most: ClassVar[dict[str, int]] = {"length": 10_000}

    seed: int = 1
    length: int = 100  # tokens of a sequence
    train: int = 20_000
    validation: int = 1000
    test: int = 1000


class SyntheticCorpus(SequenceCorpus):
    def read_source(self, source: str) -> tuple[list[str], SyntheticSettings]:
        name, _, settings = (source.strip() or DEFAULT).partition(" ")
        if name not in TASKS:
            raise UserError(
                f"source {source!r}: {name!r} is not a task; give one of {', '.join(TASKS)}, "
                'then its settings: "walk seed=2"'
            )
        return [name], self.settings.parse(settings)

    def task(self, source: str) -> SequenceTask:
        (name,), settings = self.read_source(source)
        return TASKS[name](settings.length)


corpus = SyntheticCorpus(__file__, SyntheticConfig, SyntheticSettings)


def main(argv: list[str]) -> int:
    return corpus.command(read(SyntheticConfig, argv, __doc__))


if __name__ == "__main__":
    cli(main)
