"""Prepare a synthetic task: sequences of 100 tokens whose exact distributions are known.

    python labs/synthetic/prepare.py [--source="walk seed=2 train=50000"] [--out=DIR] [--force]

`--source` is a task of labs.synthetic.tasks, product, step, permutation or walk, and Settings of it. The
folder has both in its name, words-walk-seed=2-train=50000, so that several stand side by side.

Sequences lie back to back, with nothing between them: windows of block_size = 100 are whole sequences. One
token more stands at the end, as the last window needs it: it begins a sequence that is not there.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from data.settings import PrepareConfig
from runtime.door import Program

DEFAULT = "product"


@dataclass
class SyntheticConfig(PrepareConfig):
    # fmt: off
    tokenizer: str = "words"        # no other: the distributions are over the task's own words
    source: str = DEFAULT           # product, step, permutation or walk, then settings such as "seed=2"
    # fmt: on

    def folder_name(self) -> str:
        return folder_name(self.tokenizer, self.source)


program = Program(__name__, __doc__, SyntheticConfig)

from functools import partial
from typing import ClassVar

from data.corpus import Split, main, prepare_splits
from data.prepared import SPLITS
from data.sequences import Sequences, Task, lines
from data.settings import GeneratorSettings
from data.tokenizers import WordTokenizer
from labs.synthetic.tasks import TASKS
from runtime.configurator import cli
from runtime.errors import UserError

FOLDER = Path(__file__).resolve().parent
MEASURE = "orders"  # sequences that stand apart from each other are no text


@dataclass(frozen=True)
class Settings(GeneratorSettings):
    """What decides a task's corpus, beside the task. train, validation and test are in sequences."""

    corpus = "the synthetic tasks"
    least: ClassVar[dict[str, int]] = {"seed": 0, "length": 2}
    most: ClassVar[dict[str, int]] = {"length": 10_000}

    seed: int = 1
    length: int = 100  # tokens of a sequence
    train: int = 20_000
    validation: int = 1000
    test: int = 1000


def read_source(source: str) -> tuple[str, Settings]:
    """The task that `source` names first (DEFAULT if it is empty), and its settings. UserError for others."""
    name, _, settings = (source.strip() or DEFAULT).partition(" ")
    if name not in TASKS:
        raise UserError(
            f"source {source!r}: {name!r} is not a task; give one of {', '.join(TASKS)}, "
            'then its settings: "walk seed=2"'
        )
    return name, Settings.parse(settings)


def task_of(source: str) -> Task:
    """The task with its exact distributions. `source` is the user's, or what the record of a prepared folder
    says."""
    name, settings = read_source(source)
    return TASKS[name](settings.length)


def truth(source: str, length: int) -> Sequences | None:
    """The truth of sequences of `length` tokens; None for windows of another length."""
    task = task_of(source)
    return Sequences(task) if task.T == length else None


def unusual(source: str) -> str:
    """The settings in the record of a prepared folder that are not the standard ones of its task."""
    return " ".join(read_source(source)[1].unusual())


def folder_name(tokenizer: str, source: str) -> str:
    """Name of a prepared folder, see data.prepared.folder_of: words-walk-seed=2. UserError for a wrong
    source."""
    name, settings = read_source(source)
    return "-".join([tokenizer, name, *settings.unusual()])


def prepare(out: Path, tokenizer: str, source: str = "", force: bool = False) -> Path:
    """Generate a task's corpus into the folder `out`; see data.corpus.prepare_splits.

    source  the task and settings of it, "key=number" with spaces between; the others have their defaults
    """
    if tokenizer != WordTokenizer.name:
        raise UserError(
            f"tokenizer = {tokenizer!r}: a synthetic task's distributions are over its own words: "
            f"use {WordTokenizer.name!r}"
        )
    name, settings = read_source(source)
    task = task_of(source)
    splits = {
        split: Split(partial(lines, task, getattr(settings, split), (settings.seed, 1 + i)))
        for i, split in enumerate(SPLITS)
    }
    own = WordTokenizer.of(task.words)
    return prepare_splits(Path(out), tokenizer, f"{name} {settings}", splits, force=force, own=own)


@program
def command(c: SyntheticConfig) -> int:
    return main(prepare, FOLDER, c)


if __name__ == "__main__":
    cli(command)()
