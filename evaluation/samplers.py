"""What samplers of any order write, beside the exact truth of a known language, and what it takes them."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from data.grammar.machine import UNKNOWN, Machine
from evaluation.any_order import FREE, Filled, burst, diffusion, one_by_one, reader_of, speculative
from evaluation.orders import Asker

# name -> how it fills in a text; of a model of any order, and of masked diffusion
ANY: dict[str, Callable[..., Filled]] = {
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


def left_to_right(c: Any, generator: torch.Generator) -> Filled:
    places = torch.arange(c.text.shape[1], device=c.text.device).expand(c.text.shape)
    return one_by_one(c, generator, places=places)


ANY["left to right"] = left_to_right


def against_truth(machine: Machine, texts: np.ndarray) -> dict[str, float]:
    """Of windows (n, T) cut anywhere from documents one after the other: the share of words that the language
    allows (`validity`: of a document up to its first forbidden word, if its start is in the window), and the
    mean -log p of those under the truth (`true_nll`, nats; what the truth writes has its entropy rate)."""
    states = machine.parse(texts, UNKNOWN)
    judged = states != UNKNOWN
    allowed = machine.allows(states[judged], texts[judged])
    p = machine.probs(states[judged][allowed])[np.arange(allowed.sum()), texts[judged][allowed]]
    return {
        "validity": float(allowed.mean()) if len(allowed) else float("nan"),
        "true_nll": float(-np.log(p).mean()) if len(p) else float("nan"),
        "judged": int(judged.sum()),
    }


def points(
    who: Asker, machine: Machine, count: int, length: int, seed: int, batch: int = 16
) -> list[dict[str, Any]]:
    """Of each sampler: model evaluations a text, tokens a pass, seconds a token, and `against_truth` of
    `count` texts (length) written from nothing."""
    out = []
    for name, sampler in (MASKED if who.order == "masked" else ANY).items():
        generator = torch.Generator().manual_seed(seed)
        texts, passes, seconds = [], [], 0.0
        for start in range(0, count, batch):
            text = torch.full((min(batch, count - start), length), FREE, device=who.device)
            began = time.perf_counter()
            c = reader_of(who.model, text, who.draws, dtype=who.dtype)
            filled = sampler(c, generator=generator)
            seconds += time.perf_counter() - began
            texts.append(filled.text.cpu().numpy())
            # a text is done before the last one of its batch is, and sleeps in rounds that fill others
            rounds = [len(set(row)) for row in filled.rank.tolist()]
            passes += [n * filled.passes / filled.rounds for n in rounds]
        mean = float(np.mean(passes))
        said = {"sampler": name, "evaluations": mean, "tokens_a_pass": length / mean}
        said["seconds_a_token"] = seconds / count / length
        out.append(said | against_truth(machine, np.concatenate(texts)))
    return out
