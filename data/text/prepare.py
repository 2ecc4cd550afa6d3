"""Prepare your own text: a folder of UTF-8 files, .txt or .txt.gz, each a document, at any depth.

    python data/text/prepare.py --source=FOLDER [--tokenizer=gpt2|bpeN] [--out=DIR] [--force]

The folders train, validation and test in FOLDER are the splits. Where there are none, whole documents are
chosen by a hash of their paths: about 1% of the bytes for validation and 1% for test. Documents are read in
the order of their paths, with a blank line between two: no tokenizer here has an end-of-text token.

The prepared folder has the names of the tokenizer and of FOLDER: several texts stand side by side.
"""

import hashlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tqdm import tqdm

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from runtime import configurator

    configurator.quiet_imports()

from data.corpus import PrepareConfig, Split, file_lines, main, prepare_splits, read_batches
from data.prepared import SPLITS, is_prepared
from runtime.configurator import cli
from runtime.errors import UserError

FOLDER = Path(__file__).resolve().parent
ENDINGS = (".txt", ".txt.gz")
HELD_OUT = 0.01  # share of the bytes, of validation and of test


def find_documents(folder: Path) -> dict[str, Path]:
    """The text files below `folder` that are neither hidden nor empty, in the order of their names.

    A name is the path in `folder`, without ".gz": it is the same on every machine, compressed or not.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"source {folder} is not a folder: give one with .txt or .txt.gz files")
    found: dict[str, Path] = {}
    for path in folder.rglob("*"):
        inside = path.relative_to(folder)
        hidden = any(part.startswith(".") for part in inside.parts)
        if hidden or not path.name.endswith(ENDINGS) or not path.is_file():
            continue
        name = inside.as_posix().removesuffix(".gz")
        if name in found:
            raise UserError(f"source {folder} has both {name} and {name}.gz: keep one")
        if any(file_lines(path)):
            found[name] = path
    return dict(sorted(found.items()))


def split_by_folder(folder: Path, found: dict[str, Path]) -> dict[str, list[Path]]:
    """The documents of each of the folders train, validation and test. UserError if one has none."""
    chosen = {
        split: [path for name, path in found.items() if name.startswith(f"{split}/")] for split in SPLITS
    }
    empty = [f"{split}/" for split, paths in chosen.items() if not paths]
    if empty:
        raise UserError(
            f"source {folder} has some of the folders train/, validation/ and test/, and no text in "
            f"{', '.join(empty)}: put some there, or rename the others to have the documents split by a hash"
        )
    outside = len(found) - sum(map(len, chosen.values()))
    if outside:
        print(f"not read: {outside} text files outside train/, validation/ and test/", file=sys.stderr)
    return chosen


def split_by_hash(folder: Path, found: dict[str, Path]) -> dict[str, list[Path]]:
    """Documents in the order of their names' hashes, to validation and test until each has its share of the
    bytes; the others train, and so does the largest."""
    if len(found) < 3:
        raise UserError(
            f"source {folder} has {len(found)} documents (.txt or .txt.gz files that are not empty), too few "
            "for three splits: give it the folders train/, validation/ and test/, or more documents"
        )
    sizes = {
        name: sum(len(line.encode()) for line in file_lines(path))
        for name, path in tqdm(found.items(), "sizes", unit=" documents", disable=None)
    }
    largest = max(sizes, key=lambda name: sizes[name])
    others = sorted(found.keys() - {largest}, key=lambda name: hashlib.sha256(os.fsencode(name)).digest())
    held_out: dict[str, list[str]] = {"validation": [], "test": []}
    taken = dict.fromkeys(held_out, 0)  # bytes
    for name in others:
        split = min(taken, key=lambda split: taken[split])
        if taken[split] >= HELD_OUT * sum(sizes.values()):
            break
        held_out[split].append(name)
        taken[split] += sizes[name]
    train = found.keys() - {name for names in held_out.values() for name in names}
    return {
        split: [found[name] for name in sorted(names)]
        for split, names in {"train": train, **held_out}.items()
    }


def join_documents(documents: list[Path]) -> Iterator[str]:
    """The lines of all `documents`, each ended by a line end, with a blank line between two."""
    for i, path in enumerate(documents):
        if i > 0:
            yield "\n"
        line = ""
        for line in file_lines(path):
            yield line
        if not line.endswith("\n"):
            yield "\n"


def measured(name: str, documents: list[Path]) -> Split:
    """The split of `documents`, read once.

    What is damaged is found before any work, and what has changed since a folder was prepared.
    """
    lines = partial(join_documents, documents)
    size, sha256 = 0, hashlib.sha256()
    for batch in read_batches(Split(lines), f"reading {name}"):
        raw = "".join(batch).encode()
        size += len(raw)
        sha256.update(raw)
    return Split(lines, size, sha256.hexdigest())


def folder_name(tokenizer: str, source: str) -> str:
    """Of a prepared folder, see data.prepared.folder_of: bpe4096-novels for a source /home/me/novels."""
    name = Path(source).expanduser().resolve().name if source else ""
    return f"{tokenizer}-{name}" if name else tokenizer


def prepare(out: Path, tokenizer: str, source: str = "", force: bool = False) -> Path:
    """Tokenise the text files below the folder `source` into `out`; see data.corpus.prepare_splits.

    source  "" takes what `out` holds, if that is whole
    """
    if not source:
        if not force and is_prepared(Path(out), tokenizer):
            return Path(out)
        raise UserError("dataset text is your own text: say where it is with --source=FOLDER")
    folder = Path(source).expanduser().resolve()
    found = find_documents(folder)
    named = any((folder / split).is_dir() for split in SPLITS)
    chosen = split_by_folder(folder, found) if named else split_by_hash(folder, found)
    splits = {split: measured(split, documents) for split, documents in chosen.items()}
    return prepare_splits(out, tokenizer, str(folder), splits, force=force)


@dataclass
class TextConfig(PrepareConfig):
    # fmt: off
    tokenizer: str = "bpe4096"      # bpeN: one of N tokens trained on the train split; or gpt2
    source: str = ""                # folder of .txt and .txt.gz files, perhaps in train/ validation/ test/
    # fmt: on

    def folder_name(self) -> str:
        return folder_name(self.tokenizer, self.source)


def command(argv: list[str]) -> int:
    return main(prepare, FOLDER, TextConfig, __doc__, argv)


if __name__ == "__main__":
    cli(command)()
