"""Corpora that a program makes up: settings are their source, and their words are their own.

Their `--source` is the settings that are not the standard ones, "seed=2 train=50000", and so is the end of
the prepared folder's name: folders of several settings stand side by side.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from data.prepare.corpus import Corpus, PrepareConfig, Split
from data.tokens import SPLITS
from labs.sequences.settings import GeneratorSettings


class GeneratedCorpus(Corpus):
    """A corpus of words of its own, which `settings` decide. The record has all of them."""

    own_words = True

    def __init__(self, file: str, config: type[PrepareConfig], settings: type[GeneratorSettings]):
        super().__init__(file, config)
        self.settings: Any = settings

    def read_source(self, source: str) -> tuple[Sequence[str], Any]:
        """The names with which `source` begins, and its settings. `source` is the user's, or the record's.

        UserError for what is no source of this corpus.
        """
        return (), self.settings.parse(source)

    def folder_name(self, tokenizer: str, source: str) -> str:
        names, settings = self.read_source(source)
        return "-".join([tokenizer, *names, *settings.unusual()])

    def same_source(self, asked: str, recorded: str) -> bool:
        return self.read_source(asked) == self.read_source(recorded)


def drawn_splits(
    draw: Callable[[int, tuple[int, ...]], Iterator[str]], settings: GeneratorSettings, **shape: int
) -> dict[str, Split]:
    """The splits of a generated corpus: `draw(size, seed)` writes one, with random numbers of its own.

    shape  what else the `Split` says
    """
    values: dict[str, Any] = vars(settings)
    return {
        split: Split(partial(draw, values[split], (values["seed"], 1 + i)), **shape)
        for i, split in enumerate(SPLITS)
    }
