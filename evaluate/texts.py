"""The texts that a table measures: prompts, what models and references write after them, their diversity."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from common.device import float64_device, get_dtype
from common.errors import UserError
from common.log import Progress
from data.tokenizers import Tokenizer
from evaluate.diversity import SPACED, TEXT_METRICS, words_of
from evaluate.sampling import generate
from evaluate.settings import Settings
from model import LanguageModel
from training.run import Degenerate


class Prompts(NamedTuple):
    """(n, prompt) ids, and (n, new) ids of the human continuation of each."""

    prompt: np.ndarray
    human: np.ndarray


def held_out_prompts(ids: np.ndarray, n: int, prompt: int, new: int, seed: int | None = None) -> Prompts:
    """`n` prompts with their continuations out of the token stream.

    They are spread evenly, without overlap; with a seed they are at random places. UserError if the split is
    too short for them.
    """
    span = prompt + new
    if n * span > len(ids):
        raise UserError(
            f"texts = {n} of {prompt} + {new} tokens need {n * span} tokens, the split has {len(ids)}: "
            "ask for fewer or shorter texts"
        )
    places = len(ids) - span + 1
    if seed is None:
        starts = np.linspace(0, places - 1, n).astype(int)
    else:
        starts = np.random.default_rng(seed).choice(places, n, replace=False)
    rows = np.stack([ids[s : s + span] for s in starts]).astype(np.int64)
    return Prompts(rows[:, :prompt], rows[:, prompt:])


def sample_texts(
    model: LanguageModel, prompts: np.ndarray, s: Settings, device: torch.device, title: str, batch: int = 50
) -> np.ndarray:
    """(n, new_tokens) ids sampled after each prompt; s.seed is the run's own, see `of_run`."""
    draws = model.head.draws(s.samples, s.seed, get_dtype(s.dtype))
    generator = torch.Generator(float64_device(device)).manual_seed(s.seed)
    total = len(prompts) * s.new_tokens
    out = []
    with Progress(total=total, unit="tok", unit_scale=True, desc=f"{title}: sampling", leave=False) as bar:
        for part in np.split(prompts, range(batch, len(prompts), batch)):
            columns = []
            start = torch.from_numpy(part).to(device)
            for token, _ in generate(model, start, s.new_tokens, draws, s, generator, dtype=s.dtype):
                columns.append(token)
                bar.update(len(part))
            out.append(torch.stack(columns, 1).cpu().numpy())
    return np.concatenate(out)


def reference_texts(name: str, prompts: Prompts, train: np.ndarray, s: Settings) -> np.ndarray:
    """Continuations that no model wrote, (n, new_tokens) ids.

    "human" are the real ones, "unigram noise" is drawn from the training unigrams, "loop" is the human's
    first 10 tokens again and again.
    """
    if name == "human":
        return prompts.human
    if name == "unigram noise":
        return np.random.default_rng(s.seed).choice(train, prompts.human.shape).astype(np.int64)
    return np.stack([np.resize(row[:10], s.new_tokens) for row in prompts.human])


def decode(tokenizer: Tokenizer, prompts: np.ndarray, new: np.ndarray, s: Settings) -> list[str]:
    """The texts that are scored: the continuation alone, or behind its prompt in the paper's protocol."""
    rows = np.concatenate((prompts, new), 1) if s.protocol == "paper" else new
    return [tokenizer.decode(r) for r in rows.tolist()]


def common_words(human: list[str], tokenize: str = SPACED) -> int:
    """How many words 95% of the human texts have: what all texts are cut to."""
    return int(np.quantile([len(words_of(t, tokenize)) for t in human], 0.05))


def cut(text: str, words: int, tokenize: str = SPACED) -> str:
    """The text up to the end of its first `words` words; all of it if it has fewer, or if `words` is 0."""
    found = words_of(text, tokenize)[:words]
    if not words or len(found) < words:
        return text
    characters = sum(map(len, found))  # a tokenizer puts spaces between them, and changes none
    end = re.match(rf"(?:\s*\S){{{characters}}}", text)
    return end[0] if end else text


def text_metrics(texts: list[str], loops: int, words: int = 0, tokenize: str = SPACED) -> dict[str, float]:
    """TEXT_METRICS of decoded texts, whose words `tokenize` finds.

    Each text is cut to its first `words`; "short_texts" says how many have fewer. 0: no text is cut. Each
    metric is the mean over `loops` groups of the texts.
    """
    short = {"short_texts": sum(len(words_of(t, tokenize)) < words for t in texts)} if words else {}
    texts = [cut(t, words, tokenize) for t in texts]
    groups = [texts[i::loops] for i in range(loops)]
    values = {key: [metric(g, tokenize) for g in groups] for key, metric in TEXT_METRICS.items()}
    spread = {"self_bleu_sd": float(np.std(values["self_bleu"], ddof=1))} if loops > 1 else {}
    return {**{key: float(np.mean(v)) for key, v in values.items()}, **spread, **short}


def measured(metric: Callable[..., dict[str, float]], texts: list[str], *arguments: Any) -> dict[str, float]:
    """metric(texts, *arguments) of a model's texts; Degenerate where there is nothing to measure."""
    try:
        return metric(texts, *arguments)
    except ValueError as e:
        raise Degenerate(f"its texts cannot be measured, {e}") from None
