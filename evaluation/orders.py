"""How well a model knows a text in other orders than left to right: held-out middles, and the exact two-sided
truth of a language that is known.

Windows lie evenly over the text. All models are asked about the same places of the same windows.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from data.orders import MASKED, arranged
from evaluation.any_order import FREE, reader_of
from evaluation.scoring import Read, scored
from evaluation.two_sided import TwoSided
from heads import Weights
from model import GPTConfig, LanguageModel

ASKED = 8  # free places of a window at which a distribution is compared with the truth
ROUNDS = 4  # draws of hidden places of each window, for the bound of masked diffusion


class Asker(NamedTuple):
    """A model, and how it is asked."""

    model: LanguageModel
    draws: list[Weights]
    device: torch.device | str
    dtype: str

    @property
    def order(self) -> str:
        return self.model.trunk.config.order


def spread(ids: np.ndarray, count: int, length: int) -> np.ndarray:
    """`count` windows (count, length) spread evenly over a text: of those that training would have."""
    starts = np.linspace(0, len(ids) // length - 1, count).astype(int) * length
    return np.stack([ids[s : s + length] for s in starts]).astype(np.int64)


# -----------------------------------------------------------------------------
# Middles


def middle_bits(who: Asker, windows: np.ndarray, gap: int) -> dict[str, float]:
    """Bits a token of the middle `gap` tokens of windows (n, T): given what stands to the `left` alone, and
    given `both` sides. A left-to-right model has the first alone.

    Of any order what is known is read first, then the middle, both from left to right. Of masked
    diffusion it is the bound.
    """
    T = windows.shape[1]
    first = (T - gap) // 2
    sides = {"left": windows[:, : first + gap]}
    if who.order != "left_to_right":
        sides["both"] = windows
    size = who.model.trunk.config

    def bits(tokens: np.ndarray) -> float:
        def read(part: list[int]) -> Read:
            if who.order == "left_to_right":
                return _plain(tokens[part], gap)
            if who.order == MASKED:
                return _hidden(tokens, part, first, gap, size.vocab_size)
            return _gap_last(tokens, part, first, gap, size)

        plan = list(range(len(tokens) * (ROUNDS if who.order == MASKED else 1)))
        s = scored(who.model, plan, read, who.draws, who.device, who.dtype)
        return float(s.nll / s.tokens / np.log(2))

    return {side: bits(tokens) for side, tokens in sides.items()}


def _plain(tokens: np.ndarray, gap: int) -> Read:
    """From left to right; the last `gap` tokens count."""
    x = torch.from_numpy(tokens)
    counted = torch.zeros(len(x), x.shape[1] - 1, dtype=torch.bool)
    counted[:, -gap:] = True
    return Read(x[:, :-1], None, x[:, 1:], counted)


def _gap_last(tokens: np.ndarray, part: list[int], first: int, gap: int, size: GPTConfig) -> Read:
    """The gap at the end of each path."""
    places = np.arange(tokens.shape[1])
    inside = (first <= places) & (places < first + gap)
    path = np.concatenate((places[~inside], places[inside]))
    read, positions, targets = map(
        torch.from_numpy,
        arranged(tokens[part], np.tile(path, (len(part), 1)), size.vocab_size, size.block_size),
    )
    counted = torch.zeros(targets.shape, dtype=torch.bool)
    counted[:, -gap:] = True
    return Read(read, positions, targets, counted)


def _hidden(tokens: np.ndarray, part: list[int], first: int, gap: int, mask: int) -> Read:
    """Some of the gap hidden, all after it not there: see data.orders.masked."""
    rows = tokens[[n % len(tokens) for n in part]]
    hidden, weights = np.zeros(rows.shape, bool), np.ones(rows.shape)
    for row, n in enumerate(part):
        count = 1 + int(gap * ((n * 0.618033988749895 + 0.5) % 1))
        hidden[row, first + np.random.default_rng(n).permutation(gap)[:count]] = True
        weights[row] = gap / count
    read = torch.from_numpy(np.where(hidden, mask, rows))
    return Read(read, None, torch.from_numpy(rows), torch.from_numpy(hidden), torch.from_numpy(weights))


# -----------------------------------------------------------------------------
# The exact truth given both sides


class Questions(NamedTuple):
    """Windows of which some places are known, and the truth at some that are not."""

    text: np.ndarray  # (n, T), FREE where not known
    places: np.ndarray  # (n, ASKED)
    log_p: np.ndarray  # (n, ASKED, V)


KINDS = ("next", "middle", "random")


def questions(truth: TwoSided, windows: np.ndarray, known: float, kind: str) -> Questions:
    """A share `known` of the places of each of windows (n, T): those to the left, of which the place after
    them is asked for (`next`); all but a `middle`; or `random` ones."""
    text = np.full_like(windows, FREE)
    n, T = windows.shape
    count, places = max(1, round(known * T)), []
    for row, window in enumerate(windows):
        rng = np.random.default_rng(row)
        at = np.arange(T)
        if kind == "middle":
            at = np.roll(at, -(T - count) - count // 2)  # of the first `count`, half stand to the right
        elif kind == "random":
            at = rng.permutation(T)
        at = at[:count]
        text[row, at] = window[at]
        free = np.flatnonzero(text[row] == FREE)
        places.append(free[:1] if kind == "next" else np.sort(rng.choice(free, min(ASKED, len(free)), False)))
    asked = np.zeros(text.shape, bool)
    np.put_along_axis(asked, np.stack(places), True, 1)
    log_p = truth.log_probs(text, asked)
    return Questions(text, np.stack(places), log_p.reshape(n, -1, log_p.shape[1]))


def divergence(who: Asker, q: Questions, batch: int = 32) -> dict[str, float]:
    """KL(truth || model) in nats and total variation, means over the places that are asked for."""
    kl, tv = [], []
    for i in range(0, len(q.text), batch):
        text, places, log_p = (torch.from_numpy(a[i : i + batch]) for a in q)
        m = _answers(who, text, places)
        p = log_p.exp()
        kl.append(torch.where(p > 0, p * (log_p - m.log()), 0.0).sum(2))
        tv.append((p - m).abs().sum(2) / 2)
    return {"kl": float(torch.cat(kl).mean()), "tv": float(torch.cat(tv).mean())}


def _answers(who: Asker, text: Tensor, places: Tensor) -> Tensor:
    """The model's distributions (B, F, V) at places (B, F), float64."""
    B, F = places.shape
    if who.order == "left_to_right":
        assert F == 1
        known = int((text[0] != FREE).sum())  # the same of all rows, and all to the left
        with torch.no_grad():
            hidden = who.model.trunk(text[:, :known].to(who.device))[:, -1]
            return who.model.head.log_probs(hidden, who.draws).cpu().double().exp()[:, None]
    said = reader_of(who.model, text, who.draws, dtype=who.dtype).each(places)
    return torch.stack([said.row(torch.full((B,), n)) for n in range(F)], 1)
