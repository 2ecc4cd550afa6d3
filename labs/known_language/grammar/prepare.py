"""Prepare the grammar: a synthetic corpus whose exact next-token distribution is known at every position.

    python labs/known_language/grammar/prepare.py [--source="seed=2 train=500000"] [--out=DIR] [--force]

Deterministic by its settings (LanguageSettings). Those that are not the standard ones are in the folder's
name, words-seed=2-train=500000, so that several stand side by side. Whoever knows them knows the exact
distributions: labs/known_language/library.py.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from common.config import cli, read
from common.errors import UserError, checking
from data.prepare.corpus import Contents, PrepareConfig
from labs.known_language.grammar.grammar import END, LanguageSettings, build_language, documents
from labs.known_language.grammar.machine import Machine
from labs.sequences.generated import GeneratedCorpus, drawn_splits
from labs.sequences.settings import GeneratorSettings
from labs.sequences.two_sided import TwoSided


@dataclass
class GrammarConfig(PrepareConfig):
    # fmt: off
    tokenizer: str = "words"        # no other: the distributions are over the grammar's own words
    source: str = ""                # settings of the generator, such as "seed=2 train=500000"
    # fmt: on


@dataclass(frozen=True)
class GrammarSettings(LanguageSettings, GeneratorSettings):
    """As text they are the `source` of a folder: "seed=1 train=2000000 ..."."""

    corpus = "the grammar"
    # a split needs several documents
    least: ClassVar[dict[str, int]] = {"seed": 0, "train": 500, "validation": 500, "test": 500}
    # there are not more words
    most = dict.fromkeys(("themes", "nouns", "verbs", "adjectives", "adverbs"), 100_000)


class GrammarCorpus(GeneratedCorpus):
    def read_source(self, source: str) -> tuple[tuple[()], GrammarSettings]:
        return (), self.settings.parse(source.partition(" language=")[0])

    def language(self, source: str) -> tuple[GrammarSettings, list[str], Machine, str]:
        """The settings, words, machine and record of a `source`."""
        _, settings = self.read_source(source)
        with checking():
            words, machine = build_language(settings)
        # with the digest: a text that other rules wrote does not get the truth of these
        return settings, words, machine, f"{settings} language={machine.digest}"

    def truth(self, source: str, length: int) -> TwoSided:
        from labs.known_language.two_sided import CutDocuments  # which needs scipy

        _, _, machine, record = self.language(source)
        if " language=" in source and source != record:
            raise UserError(f"{source!r}: other rules wrote this text than today's: prepare it with --force")
        return CutDocuments(machine)

    def contents(self, c: GrammarConfig) -> Contents:
        settings, words, machine, record = self.language(c.source)

        def lines(tokens: int, seed: tuple[int, ...]) -> Iterator[str]:
            for document in documents(machine, tokens, seed):
                yield " ".join([words[i] for i in document[:-1]]) + END

        return Contents(record, drawn_splits(lines, settings), words)


corpus = GrammarCorpus(__file__, GrammarConfig, GrammarSettings)


def main(argv: list[str]) -> int:
    return corpus.command(read(GrammarConfig, argv, __doc__))


if __name__ == "__main__":
    cli(main)
