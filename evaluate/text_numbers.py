"""The numbers of the text measure: a model and the data that it is measured on -> perplexities, texts."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch

from data.tokenizers import Tokenizer
from data.tokens import TokenFile
from evaluate import metrics
from evaluate.sampling import Prompts
from evaluate.scoring import TemperedCalibration, fit_temperature, score
from evaluate.settings import TextConfig
from model import LanguageModel

Bar = Callable[[Iterable], Iterable]


class Data(NamedTuple):
    """What a model is measured on."""

    train: TokenFile
    split: TokenFile
    validation: TokenFile | None  # where there is one, a temperature is fitted to it
    tokenizer: Tokenizer
    prompts: Prompts

    @property
    def prompt_texts(self) -> list[str]:
        return decode(self.tokenizer, self.prompts.prompt)


def decode(tokenizer: Tokenizer, rows: np.ndarray) -> list[str]:
    """The texts of ids (n, T)."""
    return [tokenizer.decode(row) for row in rows.tolist()]


def held_out_numbers(
    model: LanguageModel, data: Data, c: TextConfig, device: torch.device, bar: Bar
) -> dict[str, Any]:
    """Perplexities and calibration on the whole held-out split. Degenerate if the model's probabilities are
    not numbers."""
    split, reads = data.split, c.block_size
    asked = (model.head.draws(c.samples, c.seed), device, c.dtype)
    tau = fit_temperature(model, data.validation.ids, *asked, context=reads) if data.validation else None
    calibration = TemperedCalibration(tau)
    r = score(model, split.ids, c.stride, *asked, each=calibration, progress=bar, context=reads)
    row = {"ppl_tok": metrics.perplexity(r.nll, r.tokens)}
    if split.words:
        row["ppl_word"] = metrics.perplexity(r.nll, split.words)
    if split.bytes:
        row["bits_per_byte"] = metrics.bits_per_byte(r.nll, split.bytes)
    row["ppl_eps"] = metrics.perplexity(r.eps_nll, r.tokens)
    counts = {"nll": r.nll, "tokens": r.tokens, "zero_probability_tokens": r.zeros}
    return row | calibration.numbers() | counts


def reference_texts(name: str, prompts: Prompts, train: np.ndarray, seed: int) -> np.ndarray:
    """Continuations that no model wrote, (n, new_tokens) ids.

    "human" are the real ones, "unigram noise" is drawn from the training unigrams, "loop" is the human's
    first 10 tokens again and again.
    """
    if name == "human":
        return prompts.human
    if name == "unigram noise":
        return np.random.default_rng(seed).choice(train, prompts.human.shape).astype(np.int64)
    return np.stack([np.resize(row[:10], prompts.human.shape[1]) for row in prompts.human])
