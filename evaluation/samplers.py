"""What samplers of any order write, beside the exact truth of a known language, and what it takes them."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from evaluation.any_order import FREE, Conditionals, reader_of
from evaluation.filling import Filled, burst, diffusion, one_by_one, speculative
from evaluation.orders import Asker
from evaluation.two_sided import TwoSided
from runtime.device import float64_device


def left_to_right(c: Conditionals, generator: torch.Generator) -> Filled:
    return one_by_one(c, generator, places=torch.arange(c.text.shape[1]).expand(c.text.shape))


# name -> how it fills in a text; of a model of any order, and of masked diffusion
ANY: dict[str, Callable[..., Filled]] = {
    "left to right": left_to_right,
    "random order": one_by_one,
    "burst, 1 order": partial(burst, orders=1),
    "burst, 5 orders": partial(burst, orders=5),
    "burst, 20 orders": partial(burst, orders=20),
    "speculative": speculative,
}
MASKED: dict[str, Callable[..., Filled]] = {
    "a token a pass": one_by_one,
    "8 steps": partial(diffusion, steps=8),
    "32 steps": partial(diffusion, steps=32),
    "128 steps": partial(diffusion, steps=128),
}


def points(
    who: Asker, truth: TwoSided, count: int, length: int, seed: int, batch: int = 16
) -> list[dict[str, Any]]:
    """Of each sampler: rounds and model evaluations a text, tokens a pass, seconds a token, and the truth's
    judgement of `count` texts (length) written from nothing."""
    out = []
    for name, sampler in (MASKED if who.order == "masked" else ANY).items():
        generator = torch.Generator(float64_device(who.device)).manual_seed(seed)
        texts, rounds, passes, seconds = [], [], [], 0.0
        for start in range(0, count, batch):
            text = torch.full((min(batch, count - start), length), FREE)
            began = time.perf_counter()
            c = reader_of(who.model, text, who.draws, dtype=who.dtype)
            filled = sampler(c, generator=generator)
            seconds += time.perf_counter() - began
            texts.append(filled.text.cpu().numpy())
            # a text is done before the last one of its batch is, and sleeps in rounds that fill others
            own = [len(set(row)) for row in filled.rank.tolist()]
            rounds += own
            passes += [n * filled.passes / filled.rounds for n in own]
        mean = float(np.mean(passes))
        said = {"sampler": name, "rounds": float(np.mean(rounds)), "evaluations": mean}
        said["tokens_a_pass"] = length / mean
        said["seconds_a_token"] = seconds / count / length
        out.append(said | truth.judge(np.concatenate(texts)))
    return out
