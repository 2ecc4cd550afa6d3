"""Prepare the demo corpus: the help topics that every CPython carries (pydoc_data.topics, 465 kB of English).

python data/demo/prepare.py [--tokenizer=gpt2|bytes|bpeN|FILE] [--out=DIR] [--force]
"""

import sys
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from data.settings import PrepareConfig
from runtime.door import Program


@dataclass
class DemoConfig(PrepareConfig):
    # fmt: off
    tokenizer: str = "bpe2048"      # bpeN: N tokens of the train split; gpt2, bytes, or a tokenizer.json
    # fmt: on


program = Program(__name__, __doc__, DemoConfig)

import io
import platform
from functools import partial

from data.corpus import Contents, Corpus
from data.splits import Split
from runtime.configurator import cli


def demo_texts() -> dict[str, str]:
    """Text of each split: of every ten topics in alphabetical order one validates, one tests, eight train."""
    from pydoc_data.topics import topics  # half a megabyte of source: read when asked for

    names: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
    for i, topic in enumerate(sorted(topics)):
        names[{0: "validation", 5: "test"}.get(i % 10, "train")].append(topic)
    return {split: "\n\n".join(topics[topic] for topic in chosen) for split, chosen in names.items()}


class DemoCorpus(Corpus[DemoConfig]):
    def contents(self, c: DemoConfig) -> Contents:
        # StringIO with newline="\n" splits at "\n" alone, as files do
        # str.splitlines would also split at form feeds
        splits = {
            name: Split(partial(io.StringIO, text, newline="\n"), len(text.encode()))
            for name, text in demo_texts().items()
        }
        # the topics change from one Python to the next, so the version is part of where the text comes from
        return Contents(f"pydoc_data.topics of Python {platform.python_version()}", splits)


corpus = DemoCorpus(__file__, DemoConfig)
command = program(corpus.command)

if __name__ == "__main__":
    cli(command)()
