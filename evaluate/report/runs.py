"""What a report shows of runs: their continuations of held-out prompts, each token with its probability, and,
where the truth is known, what each run believes of the next word beside it."""

import math
from itertools import repeat
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from common.device import autocast, float64_device, get_dtype
from data.tokenizers import Tokenizer, added
from data.tokens import TokenFile, Truth
from evaluate.measure import NamedRun
from evaluate.metrics import Window, document_windows
from evaluate.sampling import Prompts, entropies, generate, weight_draws
from evaluate.scoring import document_blocks
from heads import Weights
from model import LanguageModel
from training.run import load_model

WORDS = 8  # of a context, by the truth's probability
BEFORE = 40  # words of a context that are shown, at most


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
    forbidden: bool  # whether a known language has no such word there

    @property
    def p(self) -> float:
        return math.exp(-self.nll)


class Prompt(NamedTuple):
    text: str
    human: str
    continuations: dict[str, list[Token]]  # by run


class Word(NamedTuple):
    text: str
    kind: str  # "observed" in the text; "forbidden" there; "together": several, summed; "" for others
    probabilities: list[float]  # the truth's, then each run's


class Context(NamedTuple):
    """A place of the held-out text, and what may come next."""

    before: str
    words: list[Word]


class ReportedRuns(NamedTuple):
    """What all runs say."""

    names: list[str]
    split: str
    prompts: list[Prompt]
    contexts: list[Context]
    scale: dict[str, float]  # of the shades: where each is at its darkest


def examine(
    named: list[NamedRun],
    split: TokenFile,
    tokenizer: Tokenizer,
    prompts: Prompts,
    places: list[Window],
    how: Drawing,
) -> ReportedRuns:
    """All runs after all `prompts`, and at all `places` of the split (see `spread_places`)."""
    texts = [[tokenizer.decode(ids) for ids in part.tolist()] for part in prompts]
    out = [Prompt(text, human, {}) for text, human in zip(*texts)]
    beliefs = []  # of each run p (places, V)
    for run in named:
        model, ckpt = load_model(run.path, device=how.device, dtype=get_dtype(how.dtype))
        draws = weight_draws(model, ckpt.record, how.samples, how.seed, how.dtype)
        for prompt, tokens in zip(out, continuations(model, prompts, split.truth, draws, tokenizer, how)):
            prompt.continuations[run.name] = tokens
        if split.truth:
            blocks = document_blocks(model, split.ids, places, draws, how.device, how.dtype)
            beliefs.append(torch.cat([log_p.exp().cpu() for _, log_p in blocks]).double().numpy())
    contexts = beside_truth(split, split.truth, places, beliefs, tokenizer) if split.truth else []
    every = [token for prompt in out for tokens in prompt.continuations.values() for token in tokens]
    scale = {"nll": 8.0, "epistemic": max(token.epistemic or 0.0 for token in every)}
    return ReportedRuns([run.name for run in named], split.path.stem, out, contexts, scale)


def continuations(
    model: LanguageModel,
    prompts: Prompts,
    truth: Truth | None,
    draws: list[Weights],
    tokenizer: Tokenizer,
    how: Drawing,
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
    allowed = truth.judge(prompts.prompt, ids).filled(True) if truth else np.ones_like(ids, bool)
    out = []
    for n, whole in enumerate(np.concatenate((prompts.prompt, ids), 1).tolist()):
        epistemic: list[float | None] = [u[n].item() for u in unsure] or [*repeat(None, new)]
        words = added(whole, tokenizer)[-new:]
        values = zip(words, (x[n].item() for x in nll), epistemic, (~allowed[n]).tolist())
        out.append([Token(*value) for value in values])
    return out


# -----------------------------------------------------------------------------
# Beside the truth


def spread_places(split: TokenFile, reads: int, count: int) -> list[Window]:
    """`count` places with a single target each, evenly spread over the documents of a split whose truth is
    known, and over the places in them; `reads`: tokens that every model reads. None without a truth."""
    if split.truth is None or count < 1:
        return []
    plan = document_windows(np.flatnonzero(split.ids == split.truth.end), reads)
    out = []
    for n, i in enumerate(np.linspace(0, len(plan) - 1, min(count, len(plan))).astype(int)):
        start, first, stop = plan[i]
        target = first + int((n + 1) * 0.618033988749895 % 1 * (stop - first))
        out.append(Window(start, target, target + 1))
    return out


def beside_truth(
    split: TokenFile, truth: Truth, places: list[Window], beliefs: list[np.ndarray], tokenizer: Tokenizer
) -> list[Context]:
    """For each place the truth's most probable words, the observed one and, of the forbidden ones, that in
    which the runs believe most; then all alternatives to the observed one and all that cannot be. Each has
    its probability by the truth and by all runs, whose p (places, V) are the `beliefs`."""
    out: list[Context] = []
    for n, (start, target, _) in enumerate(places):
        at = start + 1 + target
        observed = int(split.ids[at])
        p = np.stack([truth.probs(np.array([at]))[0], *(q[n] for q in beliefs)])
        valid = p[0] > 0
        top = [int(i) for i in p[0].argsort()[::-1][:WORDS] if valid[i]]
        worst = int(np.where(valid, -1, p[1:].sum(0)).argmax())
        kinds = {i: "observed" if i == observed else "" for i in (*top, observed)}
        kinds |= {} if valid[worst] else {worst: "forbidden"}
        words = [Word(word_text(tokenizer, i), kind, p[:, i].tolist()) for i, kind in kinds.items()]
        others = valid.copy()
        others[observed] = False
        for which, title in ((others, "valid alternatives"), (~valid, "forbidden words")):
            words.append(Word(f"all {which.sum()} {title}", "together", p[:, which].sum(1).tolist()))
        first = max(start + 1, at - BEFORE)
        ends = np.flatnonzero(split.ids[first:at] == truth.end)
        first += int(ends[-1]) + 1 if len(ends) else 0  # what is before its document says nothing of it
        out.append(Context(tokenizer.decode(split.ids[first:at].tolist()), words))
    return out


def word_text(tokenizer: Tokenizer, token: int) -> str:
    text = tokenizer.decode([token])
    return text if text.strip() else repr(text)[1:-1]
