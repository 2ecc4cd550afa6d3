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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from math import prod
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from common.config import cli, read
from common.errors import UserError
from common.files import locked, read_json, write_json
from data.corpus import SPLITS, Contents, PrepareConfig, Split, is_prepared, read_meta, refuse_another
from data.tokenizers import WordTokenizer
from labs.classes.sets import KINDS, ImageSet, open_images
from labs.images.image_tokens.codecs import CODECS, Codec, grid_of, make_codec, read_codec, save_codec
from labs.images.image_tokens.files import digest_of, open_files
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


def sequences(layout: Layout, chunks: Callable[[], Chunks]) -> Iterator[str]:
    """Each image as text, with a space behind it, and the first word of one more: the last window needs a
    token behind it."""
    words = np.array(layout.words)
    for codes, labels in chunks():
        for row in words[np.column_stack((layout.token(labels), codes))]:
            yield " ".join(row) + " "
    yield words[layout.none]


def codec_of(out: Path, s: ImageTokenSource, images: Callable[[], ImageSet], force: bool) -> Codec:
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


def image_chunks(out: Path, s: ImageTokenSource, force: bool) -> tuple[int, dict[str, Callable[[], Chunks]]]:
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


def with_folder(out: Path, s: ImageTokenSource) -> ImageTokenSource:
    """`s`, or what `out` was prepared from if that is the same but for the images' folder, which `s` lacks.

    UserError if `s` names another folder, or if there are other images in it now.
    """
    record = str(read_meta(out).get("source", ""))
    if s.images == FILES or record.partition(" in=")[0] != str(s).partition(" in=")[0]:
        return s
    recorded = read_source(record)
    if not s.folder:
        return recorded
    refuse_another(out, {"source": record}, {"source": str(s)})
    if is_prepared(out, WordTokenizer.name):
        refuse_another(out, read_codec(out)[1], {"images_sha256": s.open().sha256})
    return s


def file_chunks(s: ImageTokenSource) -> tuple[int, dict[str, Callable[[], Chunks]]]:
    """Codes an image, and the splits of codes that are there already."""
    files = open_files(Path(s.folder), s.settings.codes, s.settings.classes)

    def chunks(split: str) -> Chunks:
        part = files[split]
        for start in range(0, len(part.rows), AT_ONCE):
            rows = part.rows[start : start + AT_ONCE]
            yield part.codes[rows], part.labels[rows]

    return files["train"].codes.shape[1], {split: partial(chunks, split) for split in files}


def codes_record(out: Path, folder: Path, force: bool) -> Callable[[], None]:
    """What writes, beside the splits, which codes they are of. UserError if `out` was made of others."""
    path, digest = out / "codes.json", digest_of(folder)
    if path.is_file() and not force:
        refuse_another(out, read_json(path), {"sha256": digest})
    return partial(write_json, path, {"sha256": digest})


class ImageTokenCorpus(GeneratedCorpus):
    measure = "images"  # or orders, for other programs' codes: they are no text
    sampler = "labs/images/sample.py"

    def read_source(self, source: str) -> tuple[list[str], ImageTokenSettings]:
        s = read_source(source)
        return [name for name in (s.images, s.tokenizer) if name], s.settings

    def given(self, source: str) -> int:
        return GIVEN

    def contents(self, c: ImageTokensConfig) -> Contents:
        s, out = read_source(c.source), Path(c.out)
        s = s if c.force else with_folder(out, s)
        layout = Layout(s.settings.codes, s.classes)
        places, chunks = file_chunks(s) if s.images == FILES else image_chunks(out, s, c.force)
        drop = s.settings.drop / 100
        shape: dict[str, Any] = {
            "length": places + GIVEN,
            "given": GIVEN,
            "dropped": drop,
            "absent": layout.none,
        }
        splits = {split: Split(partial(sequences, layout, some), **shape) for split, some in chunks.items()}
        contents = Contents(str(s), splits, layout.words)
        if s.images == FILES:
            return contents._replace(finish=codes_record(out, Path(s.folder), c.force))
        return contents


corpus = ImageTokenCorpus(__file__, ImageTokensConfig, ImageTokenSettings)


def main(argv: list[str]) -> int:
    return corpus.command(read(ImageTokensConfig, argv, __doc__))


if __name__ == "__main__":
    cli(main)
