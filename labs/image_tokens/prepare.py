"""Prepare images as tokens: of each its class, then its codes in raster order.

    python labs/image_tokens/prepare.py [--source="digits vq"] [--out=DIR] [--force]
    python labs/image_tokens/prepare.py --source="mnist patches codes=128 in=DIR"
    python labs/image_tokens/prepare.py --source="files codes=16384 classes=1000 in=DIR"

`--source` is digits, mnist, cifar10 or cifar100, then vq or patches (labs/image_tokens/codecs.py; a vq is
trained here first), then settings, at last in=DIR, the folder with the images' files. Without it they come
from the Hugging Face hub. Or it is files: codes that another program made (labs/image_tokens/files.py).

The vocabulary is the codes, the classes, and a token for no class. Training sees that one instead of the
class in `drop` per cent of its sequences, other ones each time (data.batches.TextSource), for classifier-free
guidance; the files hold all classes.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from data.settings import PrepareConfig
from runtime.door import Program

DEFAULT = "digits vq"


@dataclass
class ImageTokensConfig(PrepareConfig):
    # fmt: off
    tokenizer: str = "words"        # no other: codes and classes are words
    source: str = DEFAULT           # IMAGES vq or IMAGES patches, then settings such as "codes=128 in=DIR"
    # fmt: on

    def folder_name(self) -> str:
        return folder_name(self.tokenizer, self.source)


program = Program(__name__, __doc__, ImageTokensConfig)

from collections.abc import Callable, Iterator
from functools import cache, partial
from math import prod
from typing import Any, ClassVar, NamedTuple

import numpy as np

from data.corpus import Split, main, prepare_splits
from data.prepared import SPLITS, is_prepared, read_meta
from data.settings import GeneratorSettings
from data.tokenizers import WordTokenizer
from labs.classes.sets import KINDS, ImageSet, open_images
from labs.image_tokens.codecs import CODECS, Codec, grid_of, make_codec, read_codec, save_codec
from labs.image_tokens.files import open_files
from runtime.configurator import cli
from runtime.errors import UserError
from runtime.files import locked

FOLDER = Path(__file__).resolve().parent
FILES = "files"
AT_ONCE = 1000  # images
GIVEN = 1  # tokens at the start of a sequence: the class
SAMPLER = "labs/images/sample.py"
MEASURE = "images"  # or orders, for other programs' codes: they are no text
USUAL = {"digits": (2, 300)}  # patch and steps of small images
LARGER = (4, 1000)  # ... and of others


@dataclass(frozen=True)
class Settings(GeneratorSettings):
    """What decides a corpus of image tokens, beside the images and the tokenizer."""

    corpus = "the image tokens"
    least: ClassVar[dict[str, int]] = {"seed": 0, "codes": 2, "patch": 0, "steps": 0, "drop": 0, "classes": 0}
    most: ClassVar[dict[str, int]] = {"codes": 2**20, "drop": 99, "classes": 2**20}

    seed: int = 1  # of the tokenizer
    codes: int = 64  # K
    patch: int = 0  # pixels of a side that a code stands for; 0: 2 of digits, 4 of others
    steps: int = 0  # of the vq's training; 0: 300 of digits, 1000 of others
    drop: int = 10  # per cent of training sequences without their class
    classes: int = 0  # of files; of images it is known


class Source(NamedTuple):
    """What `--source` says."""

    images: str  # in KINDS, or FILES
    tokenizer: str  # in CODECS; "" of files
    settings: Settings
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


def read_source(source: str) -> Source:
    """What `source` says; UserError for what is no source."""
    text, _, folder = (source.strip() or DEFAULT).partition(" in=")
    images, *rest = text.split()
    if images not in (*KINDS, FILES):
        raise UserError(f"source {source!r}: {images!r} is not one of {', '.join((*KINDS, FILES))}")
    tokenizer = "" if images == FILES else rest.pop(0) if rest and "=" not in rest[0] else "vq"
    if images != FILES and tokenizer not in CODECS:
        raise UserError(f"source {source!r}: {tokenizer!r} is no tokenizer; give {' or '.join(CODECS)}")
    settings = Settings.parse(" ".join(rest))
    if (images == FILES) != bool(settings.classes) or (images == FILES and not folder):
        raise UserError(
            f"source {source!r}: files need classes=NUMBER and in=DIR, and of images the classes are known"
        )
    return Source(images, tokenizer, settings, str(Path(folder).expanduser().absolute()) if folder else "")


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


def given(source: str) -> int:
    return GIVEN


def unusual(source: str) -> str:
    """The settings in the record of a prepared folder that are not the standard ones."""
    return " ".join(read_source(source).settings.unusual())


def folder_name(tokenizer: str, source: str) -> str:
    """Name of a prepared folder, see data.prepared.folder_of: words-mnist-vq-codes=128. UserError for a
    wrong source."""
    s = read_source(source)
    return "-".join(filter(None, [tokenizer, s.images, s.tokenizer, *s.settings.unusual()]))


# -----------------------------------------------------------------------------
# The corpus

Chunks = Iterator[tuple[np.ndarray, np.ndarray]]  # codes (n, places) and labels (n,) of some images


def sequences(layout: Layout, chunks: Callable[[], Chunks]) -> Iterator[str]:
    """Each image as text, with a space behind it, and the first word of one more: the last window needs a
    token behind it."""
    words = np.array(layout.words)
    for codes, labels in chunks():
        for row in words[np.column_stack((layout.token(labels), codes))]:
            yield " ".join(row) + " "
    yield words[layout.none]


def codec_of(out: Path, s: Source, images: Callable[[], ImageSet], force: bool) -> Codec:
    """The one that `out` holds of this source, or a new one, fitted to the train images and saved there."""
    made_of = str(s).partition(" in=")[0]
    with locked(out / ".codec.lock"):
        if (out / "codec.json").is_file() and not force:
            codec, record = read_codec(out)
            if (record.get("source"), record.get("images_sha256")) == (made_of, images().sha256):
                return codec
        shape = KINDS[s.images].shape
        new = make_codec(s.tokenizer, shape, s.patch, s.settings.codes, s.settings.seed)
        new.fit(images().train.pixels, s.settings.seed, s.steps)
        record = {"source": made_of, "images": s.images, "images_sha256": images().sha256}
        save_codec(new, out, record)
        return read_codec(out)[0]


def of_images(out: Path, s: Source, force: bool) -> tuple[int, dict[str, Callable[[], Chunks]]]:
    """Codes an image, and the splits of a set of images. They are read only where something is to be made."""
    places = prod(grid_of(KINDS[s.images].shape, s.patch))
    make_codec(s.tokenizer, KINDS[s.images].shape, s.patch, s.settings.codes, 0)  # UserError before any work
    images = cache(s.open)
    codec = cache(lambda: codec_of(out, s, images, force))
    if force or not is_prepared(out, WordTokenizer.name):
        codec()  # before the folder says whose it is: a wrong in=DIR leaves nothing behind

    def chunks(split: str) -> Chunks:
        part = getattr(images(), split)
        for start in range(0, len(part), AT_ONCE):
            some = part.at(np.arange(start, min(start + AT_ONCE, len(part))))
            yield codec().encode(some.pixels), some.labels

    return places, {split: partial(chunks, split) for split in SPLITS}


def settled(out: Path, s: Source) -> Source:
    """`s`, or what `out` was prepared from if that is the same but for the images' folder, which `s` lacks.

    UserError if `s` names another folder, or if there are other images in it now.
    """
    was = str(read_meta(out).get("source", ""))
    if s.images == FILES or was.partition(" in=")[0] != str(s).partition(" in=")[0]:
        return s
    held = read_source(was)
    if not s.folder:
        return held
    if s.folder != held.folder:
        raise UserError(
            f"{out} was prepared from {was!r}: leave in= out to use it as it is, or prepare.py --force to "
            "start over (or with another --out)"
        )
    if is_prepared(out, WordTokenizer.name) and read_codec(out)[1].get("images_sha256") != s.open().sha256:
        raise UserError(f"{out} was made of other images than {s.folder} now has: --force starts over")
    return s


def of_files(s: Source) -> tuple[int, dict[str, Callable[[], Chunks]]]:
    """The same of codes that are there already."""
    found = open_files(Path(s.folder), s.settings.codes, s.settings.classes)

    def chunks(split: str) -> Chunks:
        part = found[split]
        for start in range(0, len(part.rows), AT_ONCE):
            rows = part.rows[start : start + AT_ONCE]
            yield part.codes[rows], part.labels[rows]

    return found["train"].codes.shape[1], {split: partial(chunks, split) for split in found}


def prepare(out: Path, tokenizer: str, source: str = "", force: bool = False) -> Path:
    """Make images into tokens in the folder `out`; see data.corpus.prepare_splits.

    source  see above
    """
    if tokenizer != WordTokenizer.name:
        raise UserError(
            f"tokenizer = {tokenizer!r}: image tokens are words of their own: use {WordTokenizer.name!r}, "
            "and say vq or patches in --source"
        )
    s, out = read_source(source), Path(out)
    s = s if force else settled(out, s)
    layout = Layout(s.settings.codes, s.classes)
    places, chunks = of_files(s) if s.images == FILES else of_images(out, s, force)
    drop = s.settings.drop / 100
    made: dict[str, Any] = {"length": places + GIVEN, "given": GIVEN, "dropped": drop, "absent": layout.none}
    splits = {split: Split(partial(sequences, layout, some), **made) for split, some in chunks.items()}
    own = WordTokenizer.of(layout.words)
    return prepare_splits(out, tokenizer, str(s), splits, force=force, own=own)


@program
def command(c: ImageTokensConfig) -> int:
    return main(prepare, FOLDER, c)


if __name__ == "__main__":
    cli(command)()
