"""The numbers of the text measure: a model and the data that it is measured on -> perplexities, texts."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from common.device import choose_dtype, get_device, get_dtype
from common.errors import UserError, checking
from common.log import progress_bar
from data.open import tokenizer_of
from data.tokenizers import Tokenizer
from data.tokens import TokenFile, open_tokens
from evaluate import metrics
from evaluate.checks import check_comparable, check_text, data_folder, open_split
from evaluate.columns import PUBLISHED
from evaluate.diversity import SPACED, TEXT_METRICS, common_words, text_metrics, tokenizer_for, words_in
from evaluate.measure import NamedRun, open_runs
from evaluate.sampling import Prompts, held_out_prompts, sample_texts
from evaluate.scoring import TemperedCalibration, fit_temperature, score
from evaluate.settings import LEAST_WORDS, Settings, TextConfig, run_seed
from evaluate.statistics import half_sampling_interval
from heads import Weights
from model import LanguageModel, context
from training.run import load_model

TRAIN_WINDOWS = 200  # that the paper's protocol scores
ENOUGH_WORDS = 20  # a text is not cut to fewer but by --words


# -----------------------------------------------------------------------------
# Runs and data


class Data(NamedTuple):
    train: TokenFile
    split: TokenFile
    validation: TokenFile | None  # where there is one, a temperature is fitted to it
    tokenizer: Tokenizer
    prompts: Prompts

    @property
    def prompt_texts(self) -> list[str]:
        return [self.tokenizer.decode(row) for row in self.prompts.prompt.tolist()]


def open_all(c: TextConfig, scorer: str = "") -> tuple[list[NamedRun], Settings, Data, torch.device]:
    """The rows that are asked for, their settings, and the data that they are measured on; `scorer`: see
    `Settings.of`. All that can be wrong is found here, before any work."""
    device = get_device(c.device)
    c = replace(c, dtype=choose_dtype(c.dtype, device).name)

    # Runs that can stand in one table, and their split
    runs = open_runs(c.checkpoints)
    check_comparable(runs)
    for run in runs:
        check_text(run.path, run.ckpt.config.dataset)
    split = open_split(runs, c.data, c.split)
    for run in runs:
        check_text(run.path, run.ckpt.config.dataset, split.given)
    train = open_tokens(data_folder(runs, c.data) / "train.bin")
    has_validation = split.path.with_name("validation.bin").is_file()
    validation = open_split(runs, c.data, "validation") if has_validation else None

    # Settings. A model of any order reads one token less than its block: then all others do, too
    tokenizer = tokenizer_of(runs[0].ckpt)
    reads = min(context(run.ckpt.record) for run in runs)
    hashes = {"train": train.info["sha256"], "corpus": split.info["sha256"]}
    s = Settings.of(c, reads, scorer, tokenizer=tokenizer.fingerprint, **hashes)
    paper = s.protocol == "paper"

    # Prompts, and what is a word of the human texts behind them
    prompts = held_out_prompts(split.ids, s.texts, s.prompt_tokens, s.new_tokens, s.seed if paper else None)
    human = decode(tokenizer, prompts.prompt, prompts.human, s)
    if s.tokenize == "auto":
        s = replace(s, tokenize=tokenizer_for(human))
    with checking():  # the tokenizer may need a package
        words = s.words or max(LEAST_WORDS, common_words(human, s.tokenize))
    least = LEAST_WORDS if paper or s.words else ENOUGH_WORDS
    if min(words, max(len(words_in(text, s.tokenize)) for text in human)) < least:
        raise UserError(f"new_tokens = {s.new_tokens}: human texts have {words} words, fewer than {least}")
    s = s if paper else replace(s, words=words)
    return runs, s, Data(train, split, validation, tokenizer, prompts), device


def decode(tokenizer: Tokenizer, prompts: np.ndarray, new: np.ndarray, s: Settings) -> list[str]:
    """The texts that are measured: the continuation alone, or behind its prompt in the paper's protocol."""
    rows = np.concatenate((prompts, new), 1) if s.protocol == "paper" else new
    return [tokenizer.decode(r) for r in rows.tolist()]


# -----------------------------------------------------------------------------
# Models

Bar = Callable[[Iterable], Iterable]


def model_numbers(
    run: NamedRun, data: Data, s: Settings, device: torch.device
) -> tuple[dict[str, Any], np.ndarray]:
    """The columns that need the model of a run, and what was sampled from it (n, new_tokens).

    Degenerate if its probabilities are not numbers.
    """
    model, ckpt = load_model(run.path, device=device, dtype=get_dtype(s.dtype))
    seeded = replace(s, seed=run_seed(s.seed, ckpt.record))
    draws = model.head.draws(s.samples, seeded.seed)
    bar = partial(progress_bar, desc=f"{run.name}: scoring", leave=False)
    if s.protocol == "paper":
        published = PUBLISHED.get(ckpt.config.name.split("-")[0], (math.nan,) * 3)
        row = dict(zip(("published_ppl", "published_self_bleu", "published_distinct_4"), published))
        row["ppl_train"] = train_perplexity(model, data, s, draws, device, bar)
    else:
        row = held_out_numbers(model, data, s, draws, device, bar)
    del draws  # the texts have some of their own, in s.dtype: two sets may not fit
    return row, sample_texts(model, data.prompts.prompt, seeded, device, run.name)


def train_perplexity(
    model: LanguageModel, data: Data, s: Settings, draws: list[Weights], device: torch.device, bar: Bar
) -> float:
    """Perplexity on random training windows, as the paper's protocol has it."""
    block, ids = s.block_size, data.train.ids
    count = min(TRAIN_WINDOWS, len(ids) // (block + 1))
    windows = np.concatenate(held_out_prompts(ids, count, 1, block, seed=s.seed), 1)
    sound = TemperedCalibration()  # Degenerate if its log-probabilities are not numbers
    parts = [score(model, w, block, draws, device, s.dtype, each=sound) for w in bar(windows)]
    return metrics.perplexity(sum(p.nll for p in parts), sum(p.tokens for p in parts))


def held_out_numbers(
    model: LanguageModel, data: Data, s: Settings, draws: list[Weights], device: torch.device, bar: Bar
) -> dict[str, Any]:
    """Perplexities and calibration on the whole held-out split."""
    split, validation = data.split, data.validation
    asked, reads = (draws, device, s.dtype), s.block_size
    tau = fit_temperature(model, validation.ids, *asked, context=reads) if validation else None
    calibration = TemperedCalibration(tau)
    r = score(model, split.ids, s.stride, *asked, each=calibration, progress=bar, context=reads)
    row = {"ppl_tok": metrics.perplexity(r.nll, r.tokens)}
    if split.words:
        row["ppl_word"] = metrics.perplexity(r.nll, split.words)
    if split.bytes:
        row["bits_per_byte"] = metrics.bits_per_byte(r.nll, split.bytes)
    row["ppl_eps"] = metrics.perplexity(r.eps_nll, r.tokens)
    return {
        **row,
        **calibration.numbers(),
        "nll": r.nll,
        "tokens": r.tokens,
        "zero_probability_tokens": r.zeros,
    }


# -----------------------------------------------------------------------------
# References


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


def reference_row(name: str, data: Data, s: Settings) -> tuple[dict[str, Any], list[str]]:
    """The row of a reference, which no model wrote, and its texts."""
    new = reference_texts(name, data.prompts, data.train.ids, s)
    texts = decode(data.tokenizer, data.prompts.prompt, new, s)
    return {"name": name, **text_metrics(texts, s.loops, s.words, s.tokenize)}, texts


def text_intervals(texts: list[str], halves: int, tokenize: str = SPACED) -> dict[str, float]:
    """`<key>_ci` of each text metric, for texts without a training: nan where a half is too short for the
    metric; {} where a half has fewer than two texts."""
    out: dict[str, float] = {}
    if len(texts) < 4:
        return out
    for key, metric in TEXT_METRICS.items():
        try:
            out[f"{key}_ci"] = half_sampling_interval(texts, partial(metric, tokenize=tokenize), halves)
        except ValueError:
            out[f"{key}_ci"] = math.nan
    return out
