"""Windows of which some places are known, and the exact truth at some that are not."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

FREE = -1  # in place of a token that is not known
ASKED = 8  # free places of a window at which a distribution is compared with the truth
Given = Callable[[np.ndarray, np.ndarray], np.ndarray]  # labs.sequences.two_sided.TwoSided.log_probs


def spread(ids: np.ndarray, count: int, length: int) -> np.ndarray:
    """At most `count` of the windows that training would have, (n, length), spread evenly over a text."""
    whole = len(ids) // length
    if whole < 1:
        raise ValueError(f"the split has {len(ids)} tokens, fewer than one window of {length}: use more text")
    starts = np.linspace(0, whole - 1, min(count, whole)).astype(int) * length
    return np.stack([ids[s : s + length] for s in starts]).astype(np.int64)


def templates(windows: np.ndarray, given: int) -> np.ndarray:
    """Windows (n, T) of which the first `given` tokens are left, and the others FREE."""
    text = np.full_like(windows, FREE)
    text[:, :given] = windows[:, :given]
    return text


class Questions(NamedTuple):
    """Windows of which some places are known, and the truth at some that are not."""

    text: np.ndarray  # (n, T), FREE where not known
    places: np.ndarray  # (n, ASKED)
    log_p: np.ndarray  # (n, ASKED, V)


KINDS = ("next", "middle", "random")


def questions(log_probs: Given, windows: np.ndarray, known: float, kind: str, given: int = 0) -> Questions:
    """A share `known` of the places of each of windows (n, T): those to the left, of which the place after
    them is asked for (`next`); all but a `middle`; or `random` ones. The first `given` places are known
    anyway, and the shares are of the others."""
    text = templates(windows, given)
    n, T = len(windows), windows.shape[1] - given
    count, places = min(T - 1, max(1, round(known * T))), []
    for row, window in enumerate(windows):
        rng = np.random.default_rng(row)
        at = np.arange(T)
        if kind == "middle":
            at = np.roll(at, -(T - count) - count // 2)  # of the first `count`, half stand to the right
        elif kind == "random":
            at = rng.permutation(T)
        at = given + at[:count]
        text[row, at] = window[at]
        free = np.flatnonzero(text[row] == FREE)
        places.append(free[:1] if kind == "next" else np.sort(rng.choice(free, min(ASKED, len(free)), False)))
    compared = np.zeros(text.shape, bool)
    np.put_along_axis(compared, np.stack(places), True, 1)
    log_p = log_probs(text, compared)
    return Questions(text, np.stack(places), log_p.reshape(n, -1, log_p.shape[1]))
