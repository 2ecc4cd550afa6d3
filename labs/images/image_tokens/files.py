"""Codes that another program made of images, LlamaGen's for instance: NumPy files of whole numbers.

    train_codes.npy    (N, places): of each image its codes in raster order
    train_labels.npy   (N,): its class

and the same of validation and test. Without a validation file 2% of the train rows, at most 10,000 and always
the same, take its place, so no two rows should be views of one image; without a test file there is no test
split. Nothing pickled is read.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from common.errors import UserError
from data.tokens import SPLITS

HELD_OUT, MOST = 0.02, 10_000  # of the train images, where there is no validation file


class Coded(NamedTuple):
    """Images as codes."""

    codes: np.ndarray  # (N, places), integers; may be mapped into memory
    labels: np.ndarray  # (N,)
    rows: np.ndarray  # those of them that are meant


def open_files(folder: Path, codes: int, classes: int) -> dict[str, Coded]:
    """The splits that are there. UserError naming a file that is cut short, of another shape or out of
    range."""
    opened = {}
    for split in SPLITS:
        path = folder / f"{split}_codes.npy"
        if split == "train" or path.is_file():
            opened[split] = open_codes(path, folder / f"{split}_labels.npy", codes, classes)
    train = opened["train"]
    for split, other in opened.items():
        if other.codes.shape[1] != train.codes.shape[1]:
            raise UserError(
                f"{folder / f'{split}_codes.npy'} has {other.codes.shape[1]} codes an image, "
                f"train_codes.npy has {train.codes.shape[1]}: all must have as many"
            )
    if "validation" not in opened:
        order = np.random.default_rng(0).permutation(len(train.rows))
        cut = min(MOST, max(1, round(HELD_OUT * len(order))))
        opened["train"] = train._replace(rows=np.sort(order[cut:]))
        opened["validation"] = train._replace(rows=np.sort(order[:cut]))
    return {split: opened[split] for split in SPLITS if split in opened}


def open_codes(path: Path, labels_path: Path, codes: int, classes: int) -> Coded:
    ids, labels = read_npy(path, 2), read_npy(labels_path, 1)
    if len(ids) != len(labels):
        raise UserError(f"{path} has {len(ids)} images and {labels_path} {len(labels)} labels: as many")
    in_range(path, ids, codes, "code", "codes")
    in_range(labels_path, labels, classes, "label", "classes")
    return Coded(ids, labels, np.arange(len(labels)))


def in_range(path: Path, values: np.ndarray, limit: int, name: str, setting: str) -> None:
    for start in range(0, len(values), 100_000):
        part = values[start : start + 100_000]
        unknown = part[(part < 0) | (part >= limit)]
        if unknown.size:
            raise UserError(
                f"{path} has the {name} {unknown.flat[0]}, and {setting} = {limit}: give {setting}=NUMBER in "
                "--source, or other files"
            )


def read_npy(path: Path, dimensions: int) -> np.ndarray:
    """The whole numbers of a .npy file, mapped into memory."""
    try:
        values = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise UserError(f"{path} is cut short, damaged or no array of numbers ({error})") from None
    if not np.issubdtype(values.dtype, np.integer) or values.ndim != dimensions or not values.size:
        shape = "(images, codes)" if dimensions == 2 else "(images,)"
        raise UserError(f"{path} holds {values.dtype} of shape {values.shape}: give whole numbers {shape}")
    return values
