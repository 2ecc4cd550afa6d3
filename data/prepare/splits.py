"""The splits of documents: those that the source has, and those that are taken out of others."""

import hashlib
from array import array
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain

import numpy as np

from common.log import progress_bar
from data.prepare.documents import Document, Documents, say
from data.tokens import SPLITS

HELD_OUT = 0.01  # share of the bytes, of validation and of test
CUT = 0.05  # share of a single document, of validation and of test


def three_splits(source: str, pools: dict[str, Documents]) -> dict[str, Documents]:
    """All three splits of a source that has the documents `pools` of some."""
    if "train" not in pools:  # then whatever there is, is divided
        some = [*pools.values()]
        pools = {"train": lambda: chain.from_iterable(pool() for pool in some)}
    if not pools.keys() & {"validation", "test"}:
        return divided(source, pools["train"], SPLITS)
    if "test" not in pools:
        pools |= divided(source, pools["validation"], ("validation", "test"), 0.5, 0.5)
    if "validation" not in pools:
        pools |= divided(source, pools["train"], ("train", "validation"))
    return pools


def divided(
    source: str, documents: Documents, splits: Sequence[str], share: float = HELD_OUT, cut: float = CUT
) -> dict[str, Documents]:
    """Whole documents for each of the `splits`: all but the first get a `share` of the bytes.

    In the order of the hashes of their texts documents go to these, until each has its share. The first has
    the rest, and the largest. So equal texts are in one split, in whatever order and files they come. A
    document takes 16 bytes of memory meanwhile. A single document is `cut`: so much of it is each of the
    others, at its end.
    """
    sizes, hashes = array("q"), array("Q")
    for document in progress_bar(documents(), "sizes", unit=" documents"):
        size, sha256 = 0, hashlib.sha256()
        for line in document.lines:
            raw = line.encode()
            size += len(raw)
            sha256.update(raw)
        sizes.append(size)
        hashes.append(int.from_bytes(sha256.digest()[:8]))
    texts, which = np.unique(np.array(hashes), return_inverse=True)
    total = np.bincount(which, np.array(sizes), len(texts))  # bytes of each text, with its copies
    if (total > 0).sum() == 1:
        say(f"{source} is a single document: {', '.join(splits)} are parts of it, cut at line ends")
        ends = [1 - cut * left for left in reversed(range(len(splits)))]
        bounds = zip([0, *ends], ends)
        return {split: partial(part_of, documents, max(sizes), *at) for split, at in zip(splits, bounds)}
    owner, taken = np.zeros(len(texts), np.int8), np.zeros(len(splits) - 1)
    enough = share * total.sum()
    for i in np.flatnonzero(total * (np.arange(len(texts)) != total.argmax())):
        least = int(taken.argmin())
        if taken[least] >= enough:
            break
        owner[i] = 1 + least
        taken[least] += total[i]

    def selected(number: int) -> Iterator[Document]:
        return (document for document, at in zip(documents(), which) if owner[at] == number)

    return {split: partial(selected, i) for i, split in enumerate(splits)}


def part_of(documents: Documents, size: int, start: float, stop: float) -> Iterator[Document]:
    """The lines of a single document that begin between two shares of its `size` in bytes. Longer ones than a
    50th of all are in pieces, which end before a space if there is one."""

    def lines() -> Iterator[str]:
        at, piece = 0, max(64, size // 400)
        for line in chain.from_iterable(document.lines for document in documents()):
            while line:
                end = len(line)
                if end > max(64, size // 50):
                    end = max(line.rfind(" ", 1, piece), 0) or piece
                if start * size <= at < stop * size:
                    yield line[:end]
                at += len(line[:end].encode())
                line = line[end:]

    yield Document("", lines())
