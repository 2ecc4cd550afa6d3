"""Prepare the grammar: a synthetic corpus whose exact next-token distribution is known at every position.

    python data/grammar/prepare.py [--source="seed=2 train=500000"] [--out=DIR] [--force]

Deterministic by its settings (data.grammar.grammar.Settings). Those that are not the standard ones are in the
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

    def folder_name(self) -> str:
        return folder_name(self.tokenizer, self.source)


program = Program(__name__, __doc__, GrammarConfig)

from collections.abc import Iterator
from functools import partial

import numpy as np

from data.corpus import Split, main, prepare_splits
from data.grammar.grammar import END, Settings, build
from data.grammar.machine import Machine
from data.grammar.truth import write_truth
from data.prepared import SPLITS
from data.tokenizers import WordTokenizer
from data.tokens import open_tokens
from runtime.configurator import cli
from runtime.errors import UserError

FOLDER = Path(__file__).resolve().parent
AT_ONCE = 4096  # documents


def lines(words: list[str], machine: Machine, tokens: int, seed: tuple[int, ...]) -> Iterator[str]:
    """Documents, one a line, until there are at least `tokens` tokens of them."""
    rng, count = np.random.default_rng(seed), 0
    while True:
        for document in machine.sample(AT_ONCE, rng):
            yield " ".join([words[i] for i in document[:-1]]) + END
            count += len(document)
            if count >= tokens:
                return


def unusual(source: str) -> str:
    """The settings in the record of a prepared folder that are not the standard ones."""
    settings = (item for item in source.split() if not item.startswith("language="))
    return " ".join(Settings.parse(" ".join(settings)).unusual())


def folder_name(tokenizer: str, source: str) -> str:
    """Name of a prepared folder, see data.prepared.folder_of: words-seed=2-train=500000. UserError for a
    wrong `source`."""
    return "-".join([tokenizer, *Settings.parse(source).unusual()])


def prepare(out: Path, tokenizer: str, source: str = "", force: bool = False) -> Path:
    """Generate the corpus into the folder `out`; see data.corpus.prepare_splits.

    source  settings of the generator, "key=number" with spaces between; the others have their defaults
    """
    if tokenizer != WordTokenizer.name:
        raise UserError(
            f"tokenizer = {tokenizer!r}: the grammar's distributions are over its own words: "
            f"use {WordTokenizer.name!r}"
        )
    settings, out = Settings.parse(source), Path(out)
    words, machine = build(settings)
    splits = {
        name: Split(partial(lines, words, machine, getattr(settings, name), (settings.seed, 1 + i)))
        for i, name in enumerate(SPLITS)
    }

    def truths() -> None:
        for name in SPLITS:
            info = write_truth(open_tokens(out / f"{name}.bin"), machine).info
            rate = info["entropy_rate"]
            print(
                f"{name}: {info['entropy']:.4f} nats a token, "
                f"in closed form {rate:.4f} (perplexity {np.exp(rate):.2f}); "
                f"{info['documents']:,} documents of {info['tokens_a_document']:.1f} tokens",
                file=sys.stderr,
            )

    # with the digest: a folder that other rules wrote is refused, and does not get the truth of these rules
    return prepare_splits(
        out,
        tokenizer,
        f"{settings} language={machine.digest}",
        splits,
        force=force,
        own=WordTokenizer.of(words),
        beside=truths,
    )


@program
def command(c: GrammarConfig) -> int:
    return main(prepare, FOLDER, c)


if __name__ == "__main__":
    cli(command)()
