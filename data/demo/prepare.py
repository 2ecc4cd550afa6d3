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

from data.corpus import Split, main, prepare_splits
from runtime.configurator import cli
from runtime.errors import UserError

FOLDER = Path(__file__).resolve().parent


def demo_texts() -> dict[str, str]:
    """Text of each split: of every ten topics in alphabetical order one validates, one tests, eight train."""
    from pydoc_data.topics import topics  # half a megabyte of source: read when asked for

    names: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
    for i, topic in enumerate(sorted(topics)):
        names[{0: "validation", 5: "test"}.get(i % 10, "train")].append(topic)
    return {split: "\n\n".join(topics[topic] for topic in chosen) for split, chosen in names.items()}


def prepare(out: Path, tokenizer: str, source: str = "", force: bool = False) -> Path:
    """Tokenise the corpus into the folder `out`, see data.corpus.prepare_splits. It has no other source."""
    if source:
        raise UserError(
            f"the demo corpus takes no source, not {source!r}: leave it empty, or use wikitext103"
        )
    texts = demo_texts()
    # StringIO with newline="\n" splits at "\n" alone, as files do
    # str.splitlines would also split at form feeds
    splits = {
        name: Split(partial(io.StringIO, text, newline="\n"), len(text.encode()))
        for name, text in texts.items()
    }
    # the topics change from one Python to the next, so the version is part of where the text comes from
    origin = f"pydoc_data.topics of Python {platform.python_version()}"
    return prepare_splits(out, tokenizer, origin, splits, force=force)


@program
def command(c: DemoConfig) -> int:
    return main(prepare, FOLDER, c)


if __name__ == "__main__":
    cli(command)()
