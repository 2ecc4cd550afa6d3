"""Prepare the novel that comes with nanoHeads, so that real text needs no download.

    python data/tale/prepare.py [--tokenizer=bpe1024] [--out=DIR] [--force]

It is "A Little Princess" by Frances Hodgson Burnett (1849-1924), of 1905, in the public domain. The text is
that of the corpus "100 English Novels" 1.4 (Computational Stylistics Group), less spaces at line ends.
Chapters 1 to 15 train, 16 validates, 17 to 19 test. A model reads so small a text many times in minutes: its
numbers show how heads are compared, not which one wins.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from common.config import cli, read
from data.text.prepare import OwnTextConfig, TextCorpus


@dataclass
class TaleConfig(OwnTextConfig):
    # fmt: off
    tokenizer: str = "bpe1024"
    source: str = str(Path(__file__).resolve().parent)
    # fmt: on


class Tale(TextCorpus):
    def folder_name(self, tokenizer: str, source: str) -> str:
        return tokenizer


corpus = Tale(__file__, TaleConfig)


def main(argv: list[str]) -> int:
    return corpus.command(read(TaleConfig, argv, __doc__))


if __name__ == "__main__":
    cli(main)
