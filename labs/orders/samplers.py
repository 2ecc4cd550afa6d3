"""What samplers write, beside the exact truth of a known language or task, and what it takes them."""

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from common.device import float64_device
from evaluate.sampling import generate
from labs.orders.asking import Asker
from labs.orders.filling import Conditionals, Filled, burst, diffusion, one_by_one, speculative, surest_first
from labs.orders.readers import places_of, reader_of
from labs.sequences.questions import FREE
from labs.sequences.two_sided import TwoSided


def fill_left_to_right(c: Conditionals, generator: torch.Generator) -> Filled:
    return one_by_one(c, generator, places=places_of(c.text == FREE))


# name -> sampler that fills in a text: for a model of any order, and for masked diffusion
ANY: dict[str, Callable[..., Filled]] = {
    "left to right": fill_left_to_right,
    "random order": one_by_one,
    "burst": burst,
    "speculative": speculative,
    "confidence": surest_first,
}
MASKED: dict[str, Callable[..., Filled]] = {
    "a token a pass": one_by_one,
    "8 steps": partial(diffusion, steps=8),
    "32 steps": partial(diffusion, steps=32),
    "128 steps": partial(diffusion, steps=128),
    "confidence": surest_first,
}


def continue_texts(asker: Asker, text: torch.Tensor, generator: torch.Generator) -> Filled:
    """Texts as a model continues them that reads from left to right. The known places are the same in all
    texts, and all at the start."""
    known = int((text[0] != FREE).sum())
    free = text.shape[1] - known
    prompt = text[:, :known].to(asker.device)
    new = generate(asker.model, prompt, free, asker.draws, generator=generator, dtype=asker.dtype)
    written = torch.cat((text[:, :known], torch.stack([token.cpu() for token, _ in new], 1)), 1)
    rank = (torch.arange(text.shape[1]) - known + 1).clamp(min=0).expand_as(text)
    return Filled(written, rank, free, free)


def write_texts(sampler: Callable, asker: Asker, text: torch.Tensor, generator: torch.Generator) -> Filled:
    """A batch of texts (B, T), filled in."""
    return sampler(reader_of(asker.model, text, asker.draws, dtype=asker.dtype), generator=generator)


def writers(order: str) -> dict[str, Callable[[Asker, torch.Tensor, torch.Generator], Filled]]:
    """The samplers of a trunk's order, by name."""
    if order == "left_to_right":
        return {"left to right": continue_texts}
    samplers = MASKED if order == "masked" else ANY
    return {name: partial(write_texts, sampler) for name, sampler in samplers.items()}


def sampler_points(
    asker: Asker, truth: TwoSided, templates: np.ndarray, seed: int, batch: int = 16
) -> list[dict[str, Any]]:
    """A row for each sampler: rounds and model evaluations a text, tokens a pass, seconds a token, and the
    truth's judgement of what it writes at the FREE places of `templates` (n, T). A judgement that
    is nan is left out."""
    out = []
    count, length = len(templates), int((templates[0] == FREE).sum())
    for name, written in writers(asker.order).items():
        generator = torch.Generator(float64_device(asker.device)).manual_seed(seed)
        texts, rounds, passes, seconds = [], [], [], 0.0
        for start in range(0, count, batch):
            text = torch.from_numpy(templates[start : start + batch])
            began = time.perf_counter()
            filled = written(asker, text, generator)
            seconds += time.perf_counter() - began
            texts.append(filled.text.cpu().numpy())
            # a text may be done before the last round of its batch; each round has the batch's mean of passes
            each = [len(set(row) - {0}) for row in filled.rank.tolist()]
            rounds += each
            passes += [n * filled.passes / filled.rounds for n in each]
        mean = float(np.mean(passes))
        row = {"sampler": name, "rounds": float(np.mean(rounds)), "evaluations": mean}
        row["tokens_a_pass"] = length / mean
        row["seconds_a_token"] = seconds / count / length
        judged = truth.judge(np.concatenate(texts))
        out.append(row | {k: v for k, v in judged.items() if not math.isnan(v)})
    return out
