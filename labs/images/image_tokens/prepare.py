"""Prepare images as tokens: of each its class, then its codes in raster order.

    python labs/images/image_tokens/prepare.py [--source="digits vq"] [--out=DIR] [--force]
    python labs/images/image_tokens/prepare.py --source="mnist patches codes=128 in=DIR"
    python labs/images/image_tokens/prepare.py --source="files codes=16384 classes=1000 in=DIR"

`--source` is digits, mnist, cifar10 or cifar100, then vq or patches (codecs.py beside this file; a vq is
trained here first), then settings, at last in=DIR, the folder with the images' files. Without it they come
from the Hugging Face hub. Or it is files: codes that another program made (files.py).

The vocabulary is the codes, the classes, and a token for no class. Training sees that one instead of the
class in `drop` per cent of its sequences, other ones each time (data.batches.TextSource), for classifier-free
guidance; the files hold all classes.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from common.config import cli, read
from common.errors import UserError
from data.prepare.corpus import Contents, PrepareConfig, Split
from data.tokens import SPLITS, TokenFile
from labs.classes.sets import KINDS, ImageSet, open_images
from labs.images.image_tokens.codecs import CODECS, Codec, grid_of, make_codec, save_codec
from labs.images.image_tokens.files import open_files
from labs.sequences.generated import GeneratedCorpus
from labs.sequences.settings import GeneratorSettings

DEFAULT = "digits vq"


@dataclass
class ImageTokensConfig(PrepareConfig):
    # fmt: off
    tokenizer: str = "words"        # no other: codes and classes are words
    source: str = DEFAULT           # IMAGES vq or IMAGES patches, then settings such as "codes=128 in=DIR"
    # fmt: on


FILES = "files"
FILE_NAMES = ("*ubyte*", "*.bin", "*_codes.npy", "*_labels.npy")  # of images, and of codes
AT_ONCE = 1000  # images
GIVEN = 1  # tokens at the start of a sequence: the class
USUAL = {"digits": (2, 300)}  # patch and steps of small images
LARGER = (4, 1000)  # ... and of others


@dataclass(frozen=True)
class ImageTokenSettings(GeneratorSettings):
    """What decides a corpus of image tokens, beside the images and the tokenizer."""

    corpus = "the image tokens"
    least: ClassVar[dict[str, int]] = {"seed": 0, "codes": 2, "patch": 0, "steps": 0, "drop": 0, "classes": 0}
    most: ClassVar[dict[str, int]] = {"seed": 2**32 - 1, "codes": 2**20, "drop": 99, "classes": 2**20}

    seed: int = 1  # of the tokenizer
    codes: int = 64  # K
    patch: int = 0  # pixels of a side that a code stands for; 0: 2 of digits, 4 of others
    steps: int = 0  # of the vq's training; 0: 300 of digits, 1000 of others
    drop: int = 10  # per cent of training sequences without their class
    classes: int = 0  # of files; of images it is known


class ImageTokenSource(NamedTuple):
    """What `--source` says."""

    images: str  # in KINDS, or FILES
    tokenizer: str  # in CODECS; "" of files
    settings: ImageTokenSettings
    folder: str  # "": none was given

    def __str__(self) -> str:
        folder = f" in={self.folder}" if self.folder else ""
        return " ".join(filter(None, (self.images, self.tokenizer, str(self.settings)))) + folder

    @property
    def patch(self) -> int:
        return self.settings.patch or USUAL.get(self.images, LARGER)[0]

    @property
    def steps(self) -> int:
        return self.settings.steps or USUAL.get(self.images, LARGER)[1]

    @property
    def classes(self) -> int:
        return self.settings.classes if self.images == FILES else KINDS[self.images].classes

    def open(self) -> ImageSet:
        """The images. UserError if they cannot be had."""
        return open_images(self.images, self.folder)


def read_source(source: str) -> ImageTokenSource:
    """What `source` says; UserError for what is no source."""
    text, _, folder = (source.strip() or DEFAULT).partition(" in=")
    images, *rest = text.split()
    if images not in (*KINDS, FILES):
        raise UserError(f"source {source!r}: {images!r} is not one of {', '.join((*KINDS, FILES))}")
    tokenizer = "" if images == FILES else rest.pop(0) if rest and "=" not in rest[0] else "vq"
    if images != FILES and tokenizer not in CODECS:
        raise UserError(f"source {source!r}: {tokenizer!r} is no tokenizer; give {' or '.join(CODECS)}")
    settings = ImageTokenSettings.parse(" ".join(rest))
    if (images == FILES) != bool(settings.classes) or (images == FILES and not folder):
        raise UserError(
            f"source {source!r}: files need classes=NUMBER and in=DIR, and of images the classes are known"
        )
    return ImageTokenSource(
        images, tokenizer, settings, str(Path(folder).expanduser().absolute()) if folder else ""
    )


# -----------------------------------------------------------------------------
# What follows from it for tokens


class Layout(NamedTuple):
    """The vocabulary: codes 0 .. K - 1, then the classes, then the token for no class."""

    codes: int
    classes: int

    @property
    def none(self) -> int:
        return self.codes + self.classes

    def token(self, labels: np.ndarray) -> np.ndarray:
        """The class tokens of labels."""
        return self.codes + labels

    @property
    def words(self) -> list[str]:
        classes = [f"class{i}" for i in range(self.classes)]
        return [*map(str, range(self.codes)), *classes, "none"]


def layout_of(source: str) -> Layout:
    """`source`: the user's, or what the record of a prepared folder says."""
    s = read_source(source)
    return Layout(s.settings.codes, s.classes)


# -----------------------------------------------------------------------------
# The corpus

Chunks = Iterator[tuple[np.ndarray, np.ndarray]]  # codes (n, places) and labels (n,) of some images
Finish = Callable[[Mapping[str, TokenFile]], None]  # of data.prepare.corpus.Contents


def sequences(layout: Layout, chunks: Callable[[], Chunks]) -> Iterator[str]:
    """Each image as text, with a space behind it, and the first word of one more: the last window needs a
    token behind it."""
    words = np.array(layout.words)
    for codes, labels in chunks():
        for row in words[np.column_stack((layout.token(labels), codes))]:
            yield " ".join(row) + " "
    yield words[layout.none]


def image_chunks(s: ImageTokenSource) -> tuple[int, dict[str, Callable[[], Chunks]], Finish]:
    """Codes an image, the splits of a set of images, and what saves the codec. That is fitted to the train
    images where it is first needed."""
    places = prod(grid_of(KINDS[s.images].shape, s.patch))
    codec = make_codec(s.tokenizer, KINDS[s.images].shape, s.patch, s.settings.codes, s.settings.seed)
    images = s.open()  # UserError before any work

    @cache
    def fitted() -> Codec:
        codec.fit(images.train.pixels, s.settings.seed, s.steps)
        return codec.eval().requires_grad_(False)

    def chunks(split: str) -> Chunks:
        part = getattr(images, split)
        for start in range(0, len(part), AT_ONCE):
            some = part.at(np.arange(start, min(start + AT_ONCE, len(part))))
            yield fitted().encode(some.pixels), some.labels

    def finish(splits: Mapping[str, TokenFile]) -> None:
        save_codec(fitted(), splits["train"].path.parent, {"source": str(s), "images": s.images})

    return places, {split: partial(chunks, split) for split in SPLITS}, finish


def file_chunks(s: ImageTokenSource) -> tuple[int, dict[str, Callable[[], Chunks]], Finish]:
    """Codes an image, and the splits of codes that are there already."""
    files = open_files(Path(s.folder), s.settings.codes, s.settings.classes)

    def chunks(split: str) -> Chunks:
        part = files[split]
        for start in range(0, len(part.rows), AT_ONCE):
            rows = part.rows[start : start + AT_ONCE]
            yield part.codes[rows], part.labels[rows]

    splits: dict[str, Callable[[], Chunks]] = {split: partial(chunks, split) for split in files}
    return files["train"].codes.shape[1], splits, lambda _: None


class ImageTokenCorpus(GeneratedCorpus):
    measure = "images"  # or orders, for other programs' codes: they are no text
    sampler = "labs/images/sample.py"

    def read_source(self, source: str) -> tuple[list[str], ImageTokenSettings]:
        s = read_source(source)
        return [name for name in (s.images, s.tokenizer) if name], s.settings

    def given(self, source: str) -> int:
        return GIVEN

    def same_source(self, asked: str, recorded: str) -> bool:
        """Whatever folder the images came from, if `asked` names none."""
        folders = read_source(asked).folder, read_source(recorded).folder
        return super().same_source(asked, recorded) and (not folders[0] or folders[0] == folders[1])

    def files(self, c: ImageTokensConfig) -> list[Path]:
        s = read_source(c.source)
        folders = KINDS[s.images].folders if s.images in KINDS else (".",)
        found = (Path(s.folder, folder).glob(name) for folder in folders for name in FILE_NAMES)
        return sorted(chain.from_iterable(found)) if s.folder else []

    def contents(self, c: ImageTokensConfig) -> Contents:
        s = read_source(c.source)
        layout = Layout(s.settings.codes, s.classes)
        places, chunks, finish = file_chunks(s) if s.images == FILES else image_chunks(s)
        shape: dict[str, Any] = {
            "length": places + GIVEN,
            "given": GIVEN,
            "dropped": s.settings.drop / 100,
            "absent": layout.none,
        }
        splits = {split: Split(partial(sequences, layout, some), **shape) for split, some in chunks.items()}
        return Contents(str(s), splits, layout.words, finish=finish)


corpus = ImageTokenCorpus(__file__, ImageTokensConfig, ImageTokenSettings)


def main(argv: list[str]) -> int:
    return corpus.command(read(ImageTokensConfig, argv, __doc__))


if __name__ == "__main__":
    cli(main)
