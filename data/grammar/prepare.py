"""Prepare the grammar: a synthetic corpus whose exact next-token distribution is known at every position.

    python data/grammar/prepare.py [--source="seed=2 train=500000"] [--out=DIR] [--force]

Deterministic by its settings (GrammarSettings, below). Those that are not the standard ones are in the
folder's name, words-seed=2-train=500000, so that several stand side by side.

Beside each split stand its exact distributions: for the 2M training tokens of the standard settings 2.7 MB,
written in three seconds. In a folder that lacks those of a split, another run of this command adds them.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from data.settings import PrepareConfig
from runtime.door import Program


@dataclass
class GrammarConfig(PrepareConfig):
    # fmt: off
    tokenizer: str = "words"        # no other: the distributions are over the grammar's own words
    source: str = ""                # settings of the generator, such as "seed=2 train=500000"
    # fmt: on


program = Program(__name__, __doc__, GrammarConfig)

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import ClassVar

import numpy as np

from data.corpus import Contents
from data.generated import GeneratedCorpus, drawn_splits
from data.grammar.grammar import END, LanguageSettings, build, documents
from data.grammar.machine import Machine
from data.grammar.truth import GrammarTruth, write_truth
from data.held_out import open_truth
from data.prepared import SPLITS
from data.settings import GeneratorSettings
from data.tokens import open_tokens
from runtime.configurator import cli
from runtime.errors import UserError


@dataclass(frozen=True)
class GrammarSettings(LanguageSettings, GeneratorSettings):
    """As text they are the `source` of a folder: "seed=1 train=2000000 ..."."""

    corpus = "the grammar"
    # a split needs several documents
    least: ClassVar[dict[str, int]] = {"seed": 0, "train": 500, "validation": 500, "test": 500}
    # there are not more words
    most = dict.fromkeys(("themes", "nouns", "verbs", "adjectives", "adverbs"), 100_000)


def lines(words: list[str], machine: Machine, tokens: int, seed: tuple[int, ...]) -> Iterator[str]:
    """The documents of a split, one a line."""
    for document in documents(machine, tokens, seed):
        yield " ".join([words[i] for i in document[:-1]]) + END


class GrammarCorpus(GeneratedCorpus[GrammarConfig, GrammarSettings]):
    def unusual_settings(self, source: str) -> str:
        settings = (item for item in source.split() if not item.startswith("language="))
        return super().unusual_settings(" ".join(settings))

    def language(self, source: str) -> tuple[GrammarSettings, list[str], Machine, str]:
        """The settings, words, machine and record of a `source`."""
        settings = self.settings.parse(source)
        words, machine = build(settings)
        # with the digest: a folder that other rules wrote is refused, and does not get the truth of these
        return settings, words, machine, f"{settings} language={machine.digest}"

    def lasting_source(self, c: GrammarConfig) -> str | None:
        """None where a split's exact distributions are not there, or damaged."""
        *_, machine, record = self.language(c.source)
        whole = all(has_truth(Path(c.out) / f"{name}.bin", machine) for name in SPLITS)
        return record if whole else None

    def contents(self, c: GrammarConfig) -> Contents:
        settings, words, machine, record = self.language(c.source)
        splits = drawn_splits(partial(lines, words, machine), settings)
        return Contents(record, splits, words, finish=partial(write_truths, Path(c.out), machine))


def has_truth(path: Path, machine: Machine) -> bool:
    """Whether the exact distributions of this machine lie beside a token file, whole."""
    with suppress(UserError, FileNotFoundError):
        kept = open_truth(open_tokens(path))
        return isinstance(kept, GrammarTruth) and kept.machine.digest == machine.digest
    return False


def write_truths(folder: Path, machine: Machine) -> None:
    """The exact distributions of each split that has none of this machine, beside it, and a line about them
    on stderr."""
    for name in SPLITS:
        path = folder / f"{name}.bin"
        if has_truth(path, machine):
            continue
        info = write_truth(open_tokens(path), machine).info
        rate = info["entropy_rate"]
        print(
            f"{name}: {info['entropy']:.4f} nats a token, "
            f"in closed form {rate:.4f} (perplexity {np.exp(rate):.2f}); "
            f"{info['documents']:,} documents of {info['tokens_a_document']:.1f} tokens",
            file=sys.stderr,
        )


corpus = GrammarCorpus(__file__, GrammarConfig, GrammarSettings)
command = program(corpus.command)

if __name__ == "__main__":
    cli(command)()
