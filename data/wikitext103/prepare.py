"""Prepare WikiText-103 v1 (Merity et al. 2016): the official train, validation and test splits.

    python data/wikitext103/prepare.py [--source=DIR] [--tokenizer=gpt2|bytes|bpeN|FILE] [--out=DIR] [--force]
    python data/wikitext103/prepare.py --tokenizer=bpe4096 --lines=9703     # the text of most of results/

Without --source the text comes from the Hugging Face hub. DIR holds wiki.{train,valid,test}.tokens, or the
hub's parquet files. A part of the train split (--lines, or wiki.train.ANYTHING.tokens) is recorded as such.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, islice
from typing import Any

from common.config import Natural, cli, read
from common.errors import UserError, reading
from common.files import real_path
from common.hub import load
from data.prepare.corpus import Contents, Corpus, PrepareConfig, Split
from data.prepare.documents import hub_values, parquet_values
from data.prepare.lines import file_lines

HUB, CONFIG = "Salesforce/wikitext", "wikitext-103-v1"
NAMES = {"train": "train", "validation": "valid", "test": "test"}  # ours and the hub's -> the original files'

# Words are whitespace-separated. The 103,227,021 (217,646; 245,569) of the papers are words + lines: an <eos>
# each. Hashes where we have seen the file: wikitext-103-raw-v1 has as many words, but is another text.
OFFICIAL: dict[str, dict[str, Any]] = {
    "train": {"words": 101_425_671, "lines": 1_801_350},
    "validation": {
        "words": 213_886,
        "lines": 3_760,
        "sha256": "9aee9f52d6e77de6c7751fc5e7c44287db3ec0eaf15477098acc6b93c1c4250b",
    },
    "test": {
        "words": 241_211,
        "lines": 4_358,
        "sha256": "56db52eb157b1ab5c89646eef70510c1eca6e12a3bfdb99f0d6b05b4eacb75b9",
    },
}


@dataclass
class WikitextConfig(PrepareConfig):
    # fmt: off
    tokenizer: str = "gpt2"         # bpeN: N tokens of the train split; bytes, or a tokenizer.json
    source: str = ""                # folder with wiki.{train,valid,test}.tokens or the hub's parquet files
    #                                 empty: the hub itself
    lines: Natural = 0                # of the train split, from its start; 0: all. 9703 are 162 articles
    # fmt: on


class WikitextCorpus(Corpus):
    def files(self, c: WikitextConfig) -> list[Path]:
        folder = real_path(c.source)
        return [file for files in split_files(folder).values() for file in files] if c.source else []

    def contents(self, c: WikitextConfig) -> Contents:
        folder, splits = real_path(c.source), dict[str, Split]()
        if c.source:
            for split, files in split_files(folder).items():
                if files[0].suffix == ".tokens":
                    splits[split] = Split(partial(file_lines, files[0]), files[0].stat().st_size)
                else:
                    shards = [partial(parquet_values, file, "text") for file in files]
                    splits[split] = Split(partial(original_lines, shards, files[0]))
            if not splits:
                names = "wiki.{train,valid,test}.tokens nor {train,validation,test}-*.parquet"
                raise FileNotFoundError(f"source {folder} has neither {names}")
        else:
            with reading(f"{HUB} {CONFIG} of the hub"):
                hub = load(HUB, CONFIG)  # downloaded once into its cache
            for split in filter(hub.__contains__, NAMES):
                shards = [partial(hub_values, hub[split], "text")]
                splits[split] = Split(partial(original_lines, shards, HUB))
        if c.lines:
            splits["train"] = Split(partial(beginning, splits.get("train", Split(list)), c.lines))
        return Contents(str(folder) if c.source else HUB, splits, official=OFFICIAL)


def split_files(folder: Path) -> dict[str, list[Path]]:
    """The files of the splits that `folder` has: wiki.*.tokens, or parquet files in the hub's layout."""
    found = {}
    for split, short in NAMES.items():
        texts = sorted([*folder.glob(f"wiki.{short}.tokens"), *folder.glob(f"wiki.{short}.*.tokens")])
        places = [sorted(place.glob(f"{split}-*.parquet")) for place in (folder, folder / CONFIG)]
        candidates = [[text] for text in texts] + [shards for shards in places if shards]
        if len(candidates) > 1:
            names = ", ".join(files[0].name for files in candidates)
            raise UserError(f"source {folder} has more than one {split} split, {names}: keep one")
        if candidates:
            found[split] = candidates[0]
    return found


def original_lines(shards: Iterable[Callable[[], Iterable[str]]], where: str | Path) -> Iterator[str]:
    """The lines of the original file from the hub's rows, which have "" for each blank line " \n"."""
    with reading(where):
        for row in chain.from_iterable(rows() for rows in shards):
            yield (row or " ").removesuffix("\n") + "\n"


def beginning(split: Split, count: int) -> Iterator[str]:
    """The first `count` lines. UserError if there are fewer."""
    left = count
    for line in islice(split.lines(), count):
        yield line
        left -= 1
    if left:
        raise UserError(f"lines = {count}: the train split has {count - left}")


corpus = WikitextCorpus(__file__, WikitextConfig)


def main(argv: list[str]) -> int:
    return corpus.command(read(WikitextConfig, argv, __doc__))


if __name__ == "__main__":
    cli(main)
