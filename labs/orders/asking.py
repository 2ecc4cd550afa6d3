"""How well a model knows a text in other orders than left to right: held-out middles, and the exact two-sided
truth of a language that is known.

Windows lie evenly over the text. All models are asked about the same places of the same windows.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from common.device import autocast
from data.batches import Batch
from evaluate.scoring import ScoringPlan, next_tokens, score
from heads import Weights
from labs.orders.readers import reader_of
from labs.orders.task import along, hide
from labs.orders.trunk import MASKED
from labs.sequences.questions import FREE, Questions
from model import LanguageModel

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


# -----------------------------------------------------------------------------
# Middles


def middle_bits(asker: Asker, windows: np.ndarray, gap: int, given: int = 0) -> dict[str, float]:
    """Bits a token of the middle `gap` tokens of windows (n, T), or of what comes after the first `given`
    tokens of each: given what stands to the `left` alone, and given `both` sides. A left-to-right model has
    the first alone.

    A model of any order reads what is known first, then the middle, both from left to right. Masked
    diffusion gives a bound.
    """
    T, size = windows.shape[1], asker.model.trunk.config
    first = given + (T - given - gap) // 2
    sides = ["left"] if asker.order == "left_to_right" else ["left", "both"]

    def bits(side: str) -> float:
        stop = T if side == "both" else first + gap

        def read(part: list[int]) -> Batch:
            numbers, tokens = np.array(part), windows[np.array(part) % len(windows), :stop]
            if asker.order == MASKED:
                whole, begin = windows[numbers % len(windows)], np.full(len(part), first)
                return hide(whole, numbers, begin, first + gap, size.vocab_size, rest=side == "left")
            count = stop - (asker.order == "left_to_right")  # of targets, of which the last `gap` count
            scored = np.tile(np.arange(count) >= count - gap, (len(tokens), 1))
            if asker.order == "left_to_right":
                return next_tokens(torch.from_numpy(tokens), torch.from_numpy(scored))
            gap_last = *range(first), *range(first + gap, stop), *range(first, first + gap)
            path = np.tile(gap_last, (len(tokens), 1))
            return along(tokens, path, size.vocab_size, place=size.block_size, scored=scored)

        plan = ScoringPlan(list(range(len(windows) * (ROUNDS if asker.order == MASKED else 1))), read)
        s = score(asker.model, plan, 0, asker.draws, asker.device, asker.dtype)
        return float(s.nll / s.tokens / np.log(2))

    return {side: bits(side) for side in sides}


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
