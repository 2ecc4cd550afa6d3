"""How well a model knows a text in other orders than left to right: held-out middles, and the exact two-sided
truth of a language that is known.

Windows lie evenly over the text. All models are asked about the same places of the same windows.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from evaluation.scoring import scored
from heads import Weights
from labs.orders.readers import reader_of
from labs.orders.trunk import MASKED, along, hide
from labs.sequences.questions import FREE, Questions
from model import GPTConfig, LanguageModel, Read
from runtime.device import autocast, to_float64
from runtime.errors import UserError
from runtime.progress import Progress

ROUNDS = 4  # draws of hidden places of each window, for the bound of masked diffusion


class Asker(NamedTuple):
    """A model, and how it is asked."""

    model: LanguageModel
    draws: list[Weights]
    device: torch.device | str
    dtype: str
    given: int = 0  # places at the start that no order has

    @property
    def order(self) -> str:
        """left_to_right, any or masked"""
        return str(getattr(self.model.trunk, "kind", "left_to_right"))

    @property
    def fills(self) -> str:
        """The order in which it fills in gaps."""
        return str(getattr(self.model.trunk, "fills", "left_to_right"))


def spread(ids: np.ndarray, count: int, length: int) -> np.ndarray:
    """At most `count` of the windows that training would have, (n, length), spread evenly over a text."""
    whole = len(ids) // length
    if whole < 1:
        raise UserError(f"the split has {len(ids)} tokens, fewer than one window of {length}: use more text")
    starts = np.linspace(0, whole - 1, min(count, whole)).astype(int) * length
    return np.stack([ids[s : s + length] for s in starts]).astype(np.int64)


# -----------------------------------------------------------------------------
# Middles


def middle_bits(asker: Asker, windows: np.ndarray, gap: int, given: int = 0) -> dict[str, float]:
    """Bits a token of the middle `gap` tokens of windows (n, T), or of what comes after the first `given`
    tokens of each: given what stands to the `left` alone, and given `both` sides. A left-to-right model has
    the first alone, see `tried_bits`.

    A model of any order reads what is known first, then the middle, both from left to right. Masked
    diffusion gives a bound.
    """
    T, size = windows.shape[1], asker.model.trunk.config
    first = given + (T - given - gap) // 2
    sides = ["left"] if asker.order == "left_to_right" else ["left", "both"]

    def bits(side: str) -> float:
        stop = T if side == "both" else first + gap

        def read(part: list[int]) -> Read:
            if asker.order == "left_to_right":
                return _plain(windows[part, :stop], gap)
            if asker.order == MASKED:
                numbers = np.array(part)
                return _hidden(windows[numbers % len(windows)], numbers, first, gap, side, size.vocab_size)
            return _gap_last(windows[part, :stop], first, gap, size)

        plan = list(range(len(windows) * (ROUNDS if asker.order == MASKED else 1)))
        s = scored(asker.model, plan, read, asker.draws, asker.device, asker.dtype)
        return float(s.nll / s.tokens / np.log(2))

    return {side: bits(side) for side in sides}


def _plain(tokens: np.ndarray, gap: int) -> Read:
    """Windows that are read from left to right; the last `gap` tokens count."""
    x = torch.from_numpy(tokens)
    counted = torch.zeros(len(x), x.shape[1] - 1, dtype=torch.bool)
    counted[:, -gap:] = True
    return Read(x[:, :-1], None, x[:, 1:], counted)


def _gap_last(tokens: np.ndarray, first: int, gap: int, size: GPTConfig) -> Read:
    """The gap at the end of each path."""
    places = np.arange(tokens.shape[1])
    inside = (first <= places) & (places < first + gap)
    path = np.tile(np.concatenate((places[~inside], places[inside])), (len(tokens), 1))
    r = along(tokens, path, size.vocab_size, size.block_size)
    return r._replace(scored=torch.from_numpy(np.arange(len(places)) >= len(places) - gap).expand(path.shape))


def _hidden(tokens: np.ndarray, numbers: np.ndarray, first: int, gap: int, side: str, mask: int) -> Read:
    """Some of the gap hidden and, where the left side is known alone, all that stands after it."""
    r = hide(tokens, numbers, np.full(len(tokens), first), first + gap, mask)
    if side == "left":
        return r
    after = torch.arange(tokens.shape[1]) >= first + gap
    return r._replace(tokens=torch.where(after, r.targets, r.tokens))


@torch.no_grad()
def tried_bits(asker: Asker, windows: np.ndarray, given: int = 0, batch: int = 256) -> float:
    """Bits of the middle token of windows (n, T), as in `middle_bits`, under a left-to-right model that is
    given both sides: p(x | left, right) = p(x, right | left) / sum_v p(v, right | left), all V tokens tried.
    Exact, and V sequences a window."""
    V, T = asker.model.head.head.vocab_size, windows.shape[1]
    first = given + (T - given - 1) // 2
    nats = 0.0
    for window in Progress(windows, desc="trying each token", leave=False):
        tried = torch.from_numpy(window).repeat(V, 1)
        tried[:, first] = torch.arange(V)
        joint = torch.cat([log_p_from(asker, part, first).sum(1).cpu() for part in tried.split(batch)])
        true = joint[int(window[first])]
        nats += float(joint.logsumexp(0) - true) if true.isfinite() else math.inf
    return nats / len(windows) / math.log(2)


def log_p_from(asker: Asker, tokens: Tensor, first: int) -> Tensor:
    """log p (B, T - first), float64, of each token of `tokens` (B, T) from place `first` on, given those
    before it, under a left-to-right model."""
    tokens = tokens.to(asker.device)
    with autocast(asker.device, asker.dtype):
        hidden = asker.model.trunk(tokens[:, :-1])[:, first - 1 :].flatten(0, 1)
        log_p = asker.model.head.log_p_of(hidden, asker.draws, tokens[:, first:].flatten())
    return to_float64(log_p).view(len(tokens), -1)


# -----------------------------------------------------------------------------
# The exact truth given both sides


def divergence(asker: Asker, q: Questions, batch: int = 32) -> dict[str, float]:
    """KL(truth || model) in nats and total variation, means over the places that are asked for."""
    kl, tv = [], []
    for i in range(0, len(q.text), batch):
        text, places, log_p = (torch.from_numpy(a[i : i + batch]) for a in q)
        m = _answers(asker, text, places)
        p = log_p.exp()
        kl.append(torch.where(p > 0, p * (log_p - m.log()), 0.0).sum(2))
        tv.append((p - m).abs().sum(2) / 2)
    return {"kl": float(torch.cat(kl).mean()), "tv": float(torch.cat(tv).mean())}


def _answers(asker: Asker, text: Tensor, places: Tensor) -> Tensor:
    """The model's distributions (B, F, V) at places (B, F), float64."""
    B, F = places.shape
    if asker.order == "left_to_right":
        assert F == 1
        known = int((text[0] != FREE).sum())  # the same of all rows, and all to the left
        with torch.no_grad(), autocast(asker.device, asker.dtype):
            hidden = asker.model.trunk(text[:, :known].to(asker.device))[:, -1]
            return asker.model.head.log_probs(hidden, asker.draws).cpu().double().exp()[:, None]
    distributions = reader_of(asker.model, text, asker.draws, dtype=asker.dtype).each(places)
    return torch.stack([distributions.row(torch.full((B,), n)) for n in range(F)], 1)
