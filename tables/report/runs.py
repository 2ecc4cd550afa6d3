"""What a report shows of runs: their continuations of held-out prompts, each token with its probability."""

import math
from itertools import repeat
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from common.device import autocast, float64_device, get_dtype
from data.tokenizers import Tokenizer, text_of_each
from data.tokens import TokenFile
from evaluate.sampling import Prompts, entropies, generate, weight_draws
from heads import Weights
from model import LanguageModel
from tables.measure import NamedRun
from training.run import load_model


class Drawing(NamedTuple):
    """Where and how texts are drawn."""

    device: torch.device
    dtype: str
    samples: int  # weight draws of Bayesian rows
    seed: int


class Token(NamedTuple):
    text: str
    nll: float  # -log p of what was drawn, nats
    epistemic: float | None  # uncertainty before it was drawn, nats; None where weights are points

    @property
    def p(self) -> float:
        return math.exp(-self.nll)


class Prompt(NamedTuple):
    text: str
    human: str
    continuations: dict[str, list[Token]]  # by run


class ReportedRuns(NamedTuple):
    """What all runs say."""

    names: list[str]
    split: str
    prompts: list[Prompt]
    scale: dict[str, float]  # of the shades: where each is at its darkest


def examine(
    named: list[NamedRun], split: TokenFile, tokenizer: Tokenizer, prompts: Prompts, how: Drawing
) -> ReportedRuns:
    """All runs after all `prompts`."""
    texts = [[tokenizer.decode(ids) for ids in part.tolist()] for part in prompts]
    out = [Prompt(text, human, {}) for text, human in zip(*texts)]
    for run in named:
        model, ckpt = load_model(run.path, device=how.device, dtype=get_dtype(how.dtype))
        draws = weight_draws(model, ckpt.record, how.samples, how.seed, how.dtype)
        for prompt, tokens in zip(out, continuations(model, prompts, draws, tokenizer, how)):
            prompt.continuations[run.name] = tokens
    every = [token for prompt in out for tokens in prompt.continuations.values() for token in tokens]
    scale = {"nll": 8.0, "epistemic": max(token.epistemic or 0.0 for token in every)}
    return ReportedRuns([run.name for run in named], split.path.stem, out, scale)


def continuations(
    model: LanguageModel, prompts: Prompts, draws: list[Weights], tokenizer: Tokenizer, how: Drawing
) -> list[list[Token]]:
    """The tokens after each prompt, drawn from left to right as the table's texts are."""
    generator = torch.Generator(float64_device(how.device)).manual_seed(how.seed)
    start, new = torch.from_numpy(prompts.prompt).to(how.device), prompts.human.shape[1]
    tokens: list[Tensor] = []
    nll: list[Tensor] = []
    unsure: list[Tensor] = []
    for token, hidden in generate(model, start, new, draws, generator=generator, dtype=how.dtype):
        with autocast(how.device, how.dtype):
            log_p = model.head.log_probs(hidden, draws)
            if len(draws) > 1:
                unsure.append(entropies(model, hidden, draws)[2])
        tokens.append(token)
        nll.append(-log_p.gather(1, token[:, None])[:, 0])
    ids = torch.stack(tokens, 1).cpu().numpy()
    out = []
    for n, whole in enumerate(np.concatenate((prompts.prompt, ids), 1).tolist()):
        epistemic: list[float | None] = [u[n].item() for u in unsure] or [*repeat(None, new)]
        words = text_of_each(whole, tokenizer)[-new:]
        values = zip(words, (x[n].item() for x in nll), epistemic)
        out.append([Token(*value) for value in values])
    return out
