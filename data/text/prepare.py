"""Prepare your own text.

python data/text/prepare.py --source=FOLDER [--column=text] [--tokenizer=NAME] [--out=DIR] [--force]

FOLDER holds UTF-8 files at any depth: .txt and .md, each a document, .jsonl, .csv and .parquet, each row a
document in the given column; .txt, .md, .jsonl and .csv may be .gz. It may be one such file, or the name of a
data set on the Hugging Face hub: owner/name, or owner/name:configuration. NAME is gpt2, bytes, bpeN (N tokens
trained on the train split) or the path of a tokenizer.json.

A line <|endoftext|> ends a document of a file of text; --separator=LINE has another line do so, or none.

A file belongs to the split that a folder on its path is called, or that its name begins or ends with: train,
validation (valid, val, dev) or test. The hub's data sets have splits of their own. Where there is no test
split, half of the validation split's documents are. Where there is no validation split, or neither, whole
documents of the train split are chosen by a hash of their text: about 1% of the bytes for each. A single
document is cut into 90%, 5% and 5%. A blank line stands between two documents: no tokenizer here has an
end-of-text token.

The prepared folder has the names of the tokenizer and of the source: several texts stand side by side.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import re
from collections.abc import Iterator

from common.config import Text, cli, read
from common.errors import UserError
from common.files import real_path
from data.prepare.corpus import Contents, Corpus, PrepareConfig, Split
from data.prepare.documents import ENDINGS, Documents, hub_documents, local_documents, text_files
from data.prepare.splits import three_splits
from data.tokens import SPLITS

ON_HUB = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?")  # owner/name, perhaps with a configuration
NAMED = 3  # documents of a split, on the screen


@dataclass
class OwnTextConfig(PrepareConfig):
    # fmt: off
    tokenizer: str = "bpe4096"      # bpeN: one of N tokens trained on the train split; gpt2; bytes;
    #                                 or the path of a tokenizer.json
    source: str = ""                # folder or file (.txt, .md, .jsonl, .csv, each perhaps .gz; .parquet),
    #                                 or a data set on the hub: owner/name or owner/name:configuration
    column: str = "text"            # of rows: of .jsonl, .csv, .parquet and the hub
    separator: Text = "<|endoftext|>"  # a line that ends a document of a file of text; empty: none does
    # fmt: on


class TextCorpus(Corpus):
    def folder_name(self, tokenizer: str, source: str) -> str:
        """bpe4096-novels for a source /home/me/novels."""
        name = real_path(source).name.replace(":", "-") if source else ""
        name = name.removesuffix(next(filter(name.endswith, ENDINGS), ""))
        return f"{tokenizer}-{name}" if name else tokenizer

    def files(self, c: OwnTextConfig) -> list[Path]:
        path = real_path(c.source)
        return [file for file, split in text_files(path).items() if split] if path.exists() else []

    def contents(self, c: OwnTextConfig) -> Contents:
        path = real_path(c.source)
        if c.source and path.exists():
            source, pools = str(path), local_documents(path, c.column, c.separator)
        elif ON_HUB.fullmatch(c.source):
            source, pools = c.source, hub_documents(c.source, c.column)
        else:
            raise FileNotFoundError(
                f"source {c.source!r}: give a file or folder of text, or owner/name of a data set on the hub"
            )
        chosen = {"train", "validation"} <= pools.keys()  # by whoever made the source
        texts = {split: Joined(source, split, d) for split, d in three_splits(source, pools).items()}

        def report(_: object) -> None:
            for text in texts.values():
                text.report(warn=text.split == "validation" and not chosen)

        return Contents(source, {split: Split(texts[split].lines) for split in SPLITS}, finish=report)


class Joined:
    """The text of a split: its documents, each ended by a line end, with a blank line between two."""

    def __init__(self, source: str, split: str, documents: Documents):
        self.source, self.split, self.documents = source, split, documents
        self.count, self.first = 0, list[str]()  # of the documents with text, as of the last pass

    def lines(self) -> Iterator[str]:
        self.count, self.first, between = 0, [], ""
        for document in self.documents():
            line = ""
            for line in document.lines:
                if between:
                    yield between
                    between = ""
                yield line
            if line:
                between = "\n" if line.endswith("\n") else "\n\n"
                self.count += 1
                self.first += [document.name] * (self.count <= NAMED)
        if not self.count:
            raise UserError(f"source {self.source} has no text for {self.split}: three splits need some")
        if between == "\n\n":
            yield "\n"

    def report(self, warn: bool) -> None:
        """Says which documents they are; nothing of the parts of one."""
        more = f" and {self.count - NAMED:,} more" * (self.count > NAMED)
        alone = ": one document says little about others" * (warn and self.count == 1)
        if any(self.first):
            print(f"{self.split}: {', '.join(self.first)}{more}{alone}", file=sys.stderr)


corpus = TextCorpus(__file__, OwnTextConfig)


def main(argv: list[str]) -> int:
    return corpus.command(read(OwnTextConfig, argv, __doc__))


if __name__ == "__main__":
    cli(main)
