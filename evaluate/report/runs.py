"""What a report shows of runs, from their checkpoints: what each writes after the same prompts, token by
token, and next-word distributions beside the truth, where it is known."""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from common.device import autocast, float64_device, get_dtype
from data.held_out import HeldOut, Truth
from data.tokenizers import Tokenizer, added
from evaluate.measure import NamedRun
from evaluate.sampling import entropies, generate, weight_draws
from evaluate.scoring import document_blocks
from evaluate.texts import Prompts
from evaluate.windows import Window, document_windows
from heads import Weights
from model import LanguageModel
from training.run import load_model

WORDS = 8  # of a context, by the truth's probability
BEFORE = 40  # words of a context that are shown, at most


class SamplingSettings(NamedTuple):
    """Where and how texts are drawn."""

    device: torch.device
    dtype: str
    samples: int  # weight draws of Bayesian rows
    seed: int


Draws = list[Weights]


class Token(NamedTuple):
    text: str
    nll: float  # -log p of what was drawn, nats
    epistemic: float | None  # uncertainty before it was drawn, nats; None where weights are points
    forbidden: bool  # whether a known language has no such word there

    @property
    def p(self) -> float:
        return math.exp(-self.nll)


class Continuation(NamedTuple):
    run: str
    about: str
    tokens: list[Token]

    @property
    def nll(self) -> float:
        return float(np.mean([t.nll for t in self.tokens]))

    @property
    def unsure(self) -> bool:
        return self.tokens[0].epistemic is not None


class Prompt(NamedTuple):
    text: str
    human: str
    continued: list[Continuation]


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
    parameters: list[int]
    split: str
    prompts: list[Prompt]
    judged: list[str]  # the runs that stand beside the truth
    contexts: list[Context]
    scale: dict[str, float]  # of the shades: where each is at its darkest


def examine(
    named: list[NamedRun],
    split: HeldOut,
    tokenizer: Tokenizer,
    prompts: Prompts,
    places: list[Window],
    settings: SamplingSettings,
) -> ReportedRuns:
    """All runs after all `prompts`, and at all `places` of the split (see `spread_places`)."""
    texts = [tokenizer.decode(p) for p in prompts.prompt.tolist()]
    humans = [tokenizer.decode(h) for h in prompts.human.tolist()]
    shown = [Prompt(text, human, []) for text, human in zip(texts, humans)]
    distributions: dict[str, np.ndarray] = {}
    parameters = []
    for run in named:
        model, ckpt = load_model(run.path, device=settings.device, dtype=get_dtype(settings.dtype))
        parameters.append(sum(p.numel() for p in model.parameters()))
        draws = weight_draws(model, ckpt.record, settings.samples, settings.seed, settings.dtype)
        about = ckpt.config.head + ("" if ckpt.foreign else f", step {ckpt.progress.step}")
        texts_of_run = continued(model, prompts, split.truth, draws, tokenizer, settings)
        for prompt, tokens in zip(shown, texts_of_run):
            prompt.continued.append(Continuation(run.name, about, tokens))
        if split.truth:
            distributions[run.name] = next_words(model, split, places, draws, settings)
    contexts = beside_truth(split, split.truth, places, distributions, tokenizer) if split.truth else []
    names = [run.name for run in named]
    return ReportedRuns(
        names, parameters, split.path.stem, shown, list(distributions), contexts, darkest(shown)
    )


def darkest(prompts: list[Prompt]) -> dict[str, float]:
    """The value of each shade's darkest tone: 8 nats, the largest uncertainty."""
    tokens = [t for p in prompts for c in p.continued for t in c.tokens]
    unsure = max((t.epistemic or 0.0 for t in tokens), default=0.0)
    return {"nll": 8.0, "epistemic": unsure}


# -----------------------------------------------------------------------------
# Continuations


def continued(
    model: LanguageModel,
    prompts: Prompts,
    truth: Truth | None,
    draws: Draws,
    tokenizer: Tokenizer,
    settings: SamplingSettings,
) -> list[list[Token]]:
    """The tokens after each prompt."""
    generator = torch.Generator(float64_device(settings.device)).manual_seed(settings.seed)
    start, new = torch.from_numpy(prompts.prompt).to(settings.device), prompts.human.shape[1]
    text, nll, unsure = forwards(model, start, new, draws, generator, settings.dtype)
    forbidden = np.zeros((len(text), new), bool)
    if truth:
        forbidden = (~truth.judge(prompts.prompt, text[:, -new:].cpu().numpy())).filled(False)
    out = []
    for n, ids in enumerate(text.tolist()):
        epistemic = [None] * new if unsure is None else unsure[n].tolist()
        words = added(ids, tokenizer)[-new:]
        each = zip(words, nll[n].tolist(), epistemic, forbidden[n].tolist())
        out.append([Token(*t) for t in each])
    return out


Drawn = tuple[Tensor, Tensor, Tensor | None]  # ids (B, P + new); -log p, uncertainty (B, new)


def forwards(
    model: LanguageModel, start: Tensor, new: int, draws: Draws, generator: torch.Generator, dtype: str
) -> Drawn:
    """Draws texts from left to right, as the table's texts are drawn."""
    tokens, nll, unsure = [], [], []
    for token, hidden in generate(model, start, new, draws, generator=generator, dtype=dtype):
        with autocast(start.device, dtype):
            log_p = model.head.log_probs(hidden, draws)
            if len(draws) > 1:
                unsure.append(entropies(model, hidden, draws)[2])
        tokens.append(token)
        nll.append(-log_p.gather(1, token[:, None])[:, 0])
    text = torch.cat((start, torch.stack(tokens, 1)), 1)
    return text, torch.stack(nll, 1), torch.stack(unsure, 1) if unsure else None


# -----------------------------------------------------------------------------
# Beside the truth


def spread_places(split: HeldOut, reads: int, count: int) -> list[Window]:
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


def next_words(
    model: LanguageModel, split: HeldOut, places: list[Window], draws: Draws, settings: SamplingSettings
) -> np.ndarray:
    """The model's p (places, V)."""
    blocks = document_blocks(model, split.ids, places, draws, settings.device, settings.dtype)
    return torch.cat([log_p.exp().cpu() for _, log_p in blocks]).double().numpy()


def beside_truth(
    split: HeldOut,
    truth: Truth,
    places: list[Window],
    distributions: dict[str, np.ndarray],
    tokenizer: Tokenizer,
) -> list[Context]:
    """For each place the truth's most probable words, the observed one and, of the forbidden ones, that in
    which the runs believe most; then all alternatives to the observed one and all that cannot be. Each has
    its probability by the truth and by all runs."""
    out: list[Context] = []
    if not distributions:
        return out
    for n, (start, target, _) in enumerate(places):
        at = start + 1 + target
        observed = int(split.ids[at])
        p = np.stack([truth.probs(np.array([at]))[0], *(q[n] for q in distributions.values())])
        valid = p[0] > 0
        top = [int(i) for i in p[0].argsort()[::-1][:WORDS] if valid[i]]
        worst = int(np.where(valid, -1, p[1:].sum(0)).argmax())
        kinds = {i: "observed" if i == observed else "" for i in (*top, observed)}
        kinds |= {} if valid[worst] else {worst: "forbidden"}
        words = [Word(shown_word(tokenizer, i), kind, p[:, i].tolist()) for i, kind in kinds.items()]
        others = valid.copy()
        others[observed] = False
        for which, title in ((others, "valid alternatives"), (~valid, "forbidden words")):
            words.append(Word(f"all {which.sum()} {title}", "together", p[:, which].sum(1).tolist()))
        first = max(start + 1, at - BEFORE)
        ends = np.flatnonzero(split.ids[first:at] == truth.end)
        first += int(ends[-1]) + 1 if len(ends) else 0  # what is before its document says nothing of it
        before = tokenizer.decode(split.ids[first:at].tolist())
        out.append(Context(before, words))
    return out


def shown_word(tokenizer: Tokenizer, token: int) -> str:
    text = tokenizer.decode([token])
    return text if text.strip() else repr(text)[1:-1]
