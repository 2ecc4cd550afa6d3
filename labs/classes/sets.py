"""Labelled images: MNIST, CIFAR-10 and CIFAR-100 from their published files, and scikit-learn's digits.

    digits     in scikit-learn: 1,797 of 8 x 8
    mnist      train-images-idx3-ubyte and three more, .gz or not
    cifar10    data_batch_1.bin to data_batch_5.bin, test_batch.bin
    cifar100   train.bin, test.bin

CIFAR is read in its binary version: the "python" one, which torchvision unpacks, holds pickles, and to read a
pickle is to run what is in it. Files lie in the folder of `source` or where torchvision puts them below it.
Without a source they come from the Hugging Face hub; nothing takes their place where that cannot be had.
"""

import gzip
import hashlib
import math
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from common.errors import UserError
from common.hub import load

TRAIN, TEST = "train", "test"


class Images(NamedTuple):
    pixels: np.ndarray  # (N, channels, height, width), uint8
    labels: np.ndarray  # (N,), int64

    def __len__(self) -> int:
        return len(self.labels)

    def at(self, rows: np.ndarray) -> "Images":
        return Images(self.pixels[rows], self.labels[rows])


class Kind(NamedTuple):
    """What the images of a set are."""

    shape: tuple[int, int, int]  # channels, height, width
    classes: int
    hub: str = ""  # where the Hugging Face hub has it
    columns: tuple[str, str] = ("image", "label")  # there
    folders: tuple[str, ...] = (".",)  # below a source, where its files may lie


KINDS = {
    "digits": Kind((1, 8, 8), 10),
    "mnist": Kind((1, 28, 28), 10, "ylecun/mnist", folders=(".", "raw", "MNIST/raw")),
    "cifar10": Kind((3, 32, 32), 10, "uoft-cs/cifar10", ("img", "label"), (".", "cifar-10-batches-bin")),
    "cifar100": Kind((3, 32, 32), 100, "uoft-cs/cifar100", ("img", "fine_label"), (".", "cifar-100-binary")),
}


class ImageSet(NamedTuple):
    name: str  # in KINDS
    train: Images
    validation: Images
    test: Images

    @property
    def kind(self) -> Kind:
        return KINDS[self.name]

    @property
    def sha256(self) -> str:
        """SHA-256 of all pixels and labels."""
        digest = hashlib.sha256()
        for split in (self.train, self.validation, self.test):
            digest.update(split.pixels.data)
            digest.update(split.labels.astype("<i8").data)
        return digest.hexdigest()


def open_images(name: str, source: str = "", validation: float = 0.1) -> ImageSet:
    """The set called `name` in KINDS, with a share of its train split held out for validation: the same
    images whatever is trained on the others. UserError if it cannot be had, and naming a file that is not
    what it should be."""
    if source:
        train, test = from_folder(name, Path(source))
    else:
        train, test = digits() if name == "digits" else from_hub(name)
    for part, images in ((TRAIN, train), (TEST, test)):
        check_images(name, images, f"the {part} split of {source or name}")
    order = np.random.default_rng(0).permutation(len(train))
    held_out = max(1, round(validation * len(train)))
    return ImageSet(name, train.at(np.sort(order[held_out:])), train.at(np.sort(order[:held_out])), test)


def check_images(name: str, images: Images, where: str) -> None:
    """UserError if they are not images of this kind, each with a label."""
    (pixels, labels), (shape, classes) = images, KINDS[name][:2]
    inside = (labels >= 0) & (labels < classes)
    if not len(labels) or pixels.shape != (len(labels), *shape) or not inside.all():
        raise UserError(
            f"{where} has images {pixels.shape} and {len(labels)} labels up to {labels.max(initial=0)}; "
            f"{name} has images {shape} and {classes} classes"
        )


# -----------------------------------------------------------------------------
# Where they come from


def digits() -> tuple[Images, Images]:
    """scikit-learn's digits, in its order, the last fifth of them for the test. Pixels 0 to 16 become 0
    to 255."""
    from sklearn.datasets import load_digits

    bundled = load_digits()
    pixels = np.round(bundled.images * (255 / 16)).astype(np.uint8)[:, None]
    everything, cut = Images(pixels, bundled.target.astype(np.int64)), len(pixels) * 4 // 5
    return everything.at(np.arange(cut)), everything.at(np.arange(cut, len(pixels)))


def from_hub(name: str) -> tuple[Images, Images]:
    """(train, test) from the Hugging Face hub, downloaded once into its cache. UserError if it cannot be."""
    hub, (image, label) = KINDS[name].hub, KINDS[name].columns
    try:
        splits = load(hub)
    except Exception as error:  # of a dozen kinds
        why = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise UserError(f"the Hugging Face hub does not give {hub} ({why}): name a folder with it") from None

    def split(part: str) -> Images:
        pixels = np.stack([np.asarray(picture, np.uint8) for picture in splits[part][image]])
        pixels = pixels[:, None] if pixels.ndim == 3 else pixels.transpose(0, 3, 1, 2)
        return Images(np.ascontiguousarray(pixels), np.asarray(splits[part][label], np.int64))

    return split(TRAIN), split(TEST)


def from_folder(name: str, source: Path) -> tuple[Images, Images]:
    """(train, test) from the published files. UserError if `source` has none of them."""
    if name == "digits":
        raise UserError("dataset = 'digits' comes with scikit-learn and takes no source: leave it out")
    read, first = FILES[name]
    for folder in KINDS[name].folders:
        if either(source / folder / first).is_file():
            return read(source / folder)
    raise UserError(f"source {source} has no {first}: give the folder of {name} in its binary version")


def mnist(folder: Path) -> tuple[Images, Images]:

    def split(prefix: str) -> Images:
        pixels = read_idx(folder / f"{prefix}-images-idx3-ubyte", 3)
        labels = read_idx(folder / f"{prefix}-labels-idx1-ubyte", 1)
        return Images(pixels[:, None], labels.astype(np.int64))

    return split("train"), split("t10k")


def cifar10(folder: Path) -> tuple[Images, Images]:
    train = [read_cifar(folder / f"data_batch_{i}.bin", 1) for i in range(1, 6)]
    return Images(*map(np.concatenate, zip(*train))), read_cifar(folder / "test_batch.bin", 1)


def cifar100(folder: Path) -> tuple[Images, Images]:
    return read_cifar(folder / "train.bin", 2), read_cifar(folder / "test.bin", 2)


# name -> what reads a folder, and one of the files there
FILES = {
    "mnist": (mnist, "train-images-idx3-ubyte"),
    "cifar10": (cifar10, "data_batch_1.bin"),
    "cifar100": (cifar100, "train.bin"),
}


# -----------------------------------------------------------------------------
# Files


def either(path: Path) -> Path:
    """`path`, or `path`.gz if that is there in its place."""
    zipped = path.with_name(path.name + ".gz")
    return path if path.is_file() or not zipped.is_file() else zipped


def content(path: Path) -> tuple[bytes, Path]:
    """The bytes of `path` or of `path`.gz, and which it was."""
    file = either(path)
    data = file.read_bytes()
    if file.suffix != ".gz":
        return data, file
    try:
        return gzip.decompress(data), file
    except (EOFError, OSError, zlib.error) as error:
        raise UserError(f"{file} is cut short or damaged ({error}): get it again") from None


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """The uint8 array of a file in IDX: two zero bytes, the type (8), how many dimensions, their big-endian
    sizes, the values. UserError if it is anything else.

    Source: LeCun, Cortes, Burges, "The MNIST database of handwritten digits".
    """
    data, file = content(path)
    start = 4 + 4 * dimensions
    sizes = [int.from_bytes(data[i : i + 4], "big") for i in range(4, start, 4)]
    if data[:4] != bytes((0, 0, 8, dimensions)) or math.prod(sizes) != len(data) - start:
        raise UserError(f"{file} is damaged, or no IDX file of {dimensions} dimensions of bytes")
    return np.frombuffer(data, np.uint8, offset=start).reshape(sizes)


def read_cifar(path: Path, label_bytes: int) -> Images:
    """A file of CIFAR's binary version: for each image its label and 3 x 32 x 32 bytes. CIFAR-100 has a
    coarse label and then a fine one, which is taken. UserError if the file is not whole.

    Source: Krizhevsky 2009, "Learning multiple layers of features from tiny images".
    """
    data, file = content(path)
    row = label_bytes + 3 * 32 * 32
    if not data or len(data) % row:
        raise UserError(f"{file} is cut short or damaged: {len(data):,} bytes, not a multiple of {row:,}")
    rows = np.frombuffer(data, np.uint8).reshape(-1, row)
    pixels = np.ascontiguousarray(rows[:, label_bytes:]).reshape(-1, 3, 32, 32)
    return Images(pixels, rows[:, label_bytes - 1].astype(np.int64))
