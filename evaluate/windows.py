"""Windows of text: the tokens that a model reads, and those that are compared with the truth.

Pure functions on numpy arrays; nothing else of this project is imported.
"""

from typing import NamedTuple

import numpy as np


class Window(NamedTuple):
    start: int  # of the inputs in the text
    first: int  # the targets first, ..., stop - 1 of the window count
    stop: int


def document_windows(ends: np.ndarray, block_size: int) -> list[Window]:
    """The windows over documents whose last tokens are at `ends`.

    The truth knows all tokens before a position; a model knows its window. To give both the same context, a
    window starts at the end token before a document and counts as many whole documents as it holds: each
    token is scored once, with all of its document in view. If a document is longer than the block, its first
    block_size tokens count. The first document of the text has nothing before it and is not scored.
    """
    out, i = [], 0
    while i < len(ends) - 1:
        j = int(np.searchsorted(ends, ends[i] + block_size, "right")) - 1  # the last end among the targets
        out.append(Window(int(ends[i]), 0, int(ends[j] - ends[i]) if j > i else block_size))
        i = max(j, i + 1)
    return out


def training_windows(ends: np.ndarray, block_size: int, context: int = 0) -> list[Window]:
    """The windows that a model is trained on (data.batches.Windows), where a document begins in them.

    As in `document_windows` those targets count that have all of their document in view, from the first new
    document on. But the windows are those of training: what a model has learnt by heart it may know only
    there, at these positions. `context`: tokens of each that it reads; 0: block_size.
    """
    out = []
    for start in range(0, int(ends[-1]) + 1 - block_size, block_size):
        first = int(ends[np.searchsorted(ends, start)]) - start
        if first < (context or block_size):
            out.append(Window(start, first, context or block_size))
    return out


def positions_of(plan: list[Window]) -> np.ndarray:
    """The positions (N,) in the text of all targets that count."""
    return np.concatenate([np.arange(w.start + 1 + w.first, w.start + 1 + w.stop) for w in plan])


def read_windows(
    ids: np.ndarray, part: list[Window], block_size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The tokens (B, T) of some windows, whether the target of each counts (B, T), and the positions (N,) in
    the text of those that do."""
    starts, first, stop = np.array(part).T[:, :, None]  # (B, 1) each
    at = np.arange(block_size)
    inputs = starts + at  # (B, T); beyond the text anything will do: nothing that counts sees it
    counted = (first <= at) & (at < stop)
    return ids[np.minimum(inputs, len(ids) - 1)].astype(np.int64), counted, inputs[counted] + 1
