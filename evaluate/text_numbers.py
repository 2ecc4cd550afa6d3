"""The numbers of the text measure: a model and the data that it is measured on -> perplexities, texts."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from common.device import get_device, get_dtype, settle_dtype
from common.errors import UserError
from common.log import Progress
from data.corpus import tokenizer_of
from data.held_out import HeldOut, Truth
from data.tokenizers import Tokenizer
from data.tokens import TokenFile, open_tokens
from evaluate import metrics
from evaluate.calibration import Calibrated, fitted_temperature
from evaluate.checks import check_comparable, check_text, data_folder, open_split
from evaluate.columns import PUBLISHED
from evaluate.decoding import Decoding
from evaluate.diversity import SPACED, TEXT_METRICS, tokenizer_for, words_of
from evaluate.measure import NamedRun, open_runs
from evaluate.scoring import described, document_blocks, recover, score, truth_blocks
from evaluate.settings import ENOUGH_WORDS, LEAST_WORDS, Settings, TextsConfig, of_run, settings
from evaluate.statistics import half_sampling_interval
from evaluate.texts import (
    Prompts,
    common_words,
    decode,
    held_out_prompts,
    reference_texts,
    sample_texts,
    text_metrics,
)
from evaluate.truncation import truncate
from evaluate.windows import document_windows
from heads import Weights
from model import LanguageModel, context
from training.run import Degenerate, load_model

TRAIN_WINDOWS = 200  # that the paper's protocol scores


# -----------------------------------------------------------------------------
# Runs and data


class Data(NamedTuple):
    train: TokenFile
    split: HeldOut
    validation: HeldOut | None  # where there is one, a temperature is fitted to it
    tokenizer: Tokenizer
    prompts: Prompts

    @property
    def truth(self) -> Truth | None:
        """The split's exact distributions, where they are known."""
        return self.split.truth

    @property
    def prompt_texts(self) -> list[str]:
        return [self.tokenizer.decode(row) for row in self.prompts.prompt.tolist()]


def open_all(c: TextsConfig, scorer: str = "") -> tuple[list[NamedRun], Settings, Data, torch.device]:
    """The rows that are asked for, their settings, and the data that they are measured on; `scorer`: see
    `settings`. All that can be wrong is found here, before any work."""
    device = get_device(c.device)
    c = replace(c, dtype=settle_dtype(c.dtype, device).name)
    runs = open_runs(c.checkpoints)
    check_comparable(runs)
    for run in runs:
        check_text(run.path, run.ckpt.config.dataset)
    first = runs[0].ckpt
    train, split = open_tokens(data_folder(runs, c.data) / "train.bin"), open_split(runs, c.data, c.split)
    check_text(runs[0].path, first.config.dataset, split.given)
    tokenizer = tokenizer_of(first)
    # a model of any order reads one token less than its block: then the other models read no more either
    reads = min(context(run.ckpt.record) for run in runs)
    hashes = {"train": train.info["sha256"], "corpus": split.info["sha256"]}
    s = settings(c, reads, scorer, tokenizer=tokenizer.fingerprint, **hashes)
    paper = s.protocol == "paper"
    if paper:  # has no columns for it
        split = split._replace(truth=None)
    if paper and s.train != first.config.data_sha256:
        raise UserError(
            f"{train.path} is not what {runs[0].path} was trained on, "
            "and the paper's protocol scores training text: leave out --data"
        )
    seed = s.seed if paper else None
    prompts = held_out_prompts(split.ids, s.texts, s.prompt_tokens, s.new_tokens, seed)
    human = decode(tokenizer, prompts.prompt, prompts.human, s)
    if s.tokenize == "auto":
        s = replace(s, tokenize=tokenizer_for(human))
    words = s.words or max(LEAST_WORDS, common_words(human, s.tokenize))
    least = LEAST_WORDS if paper or s.words else ENOUGH_WORDS
    if min(words, max(len(words_of(text, s.tokenize)) for text in human)) < least:
        raise UserError(
            f"new_tokens = {s.new_tokens}: human texts of so many have {words} words by {s.tokenize}, fewer "
            f"than {least}: ask for more, give the --tokenize of their language, or cut texts by --words"
        )
    if not paper:
        s = replace(s, words=words)
    has_validation = split.path.with_name("validation.bin").is_file()
    validation = open_split(runs, c.data, "validation") if has_validation else None
    return runs, s, Data(train, split, validation, tokenizer, prompts), device


# -----------------------------------------------------------------------------
# Against the truth


def recovery(
    data: Data,
    s: Settings,
    model: LanguageModel | None,
    draws: list[Weights] | None = None,
    device: torch.device | str = "cpu",
    progress: Callable[[Iterable], Iterable] = iter,
) -> dict[str, Any]:
    """The columns TRUTH but the validity, and what else metrics.Recovery says.

    Without a `model` they are a perfect model's. `draws` belong to `model`. {} where the truth is not known.
    """
    if data.truth is None:
        return {}
    ids = data.split.ids
    plan = document_windows(np.flatnonzero(ids == data.truth.end), s.block_size)
    if model is None:
        blocks = truth_blocks(data.truth, plan)
    else:
        assert draws is not None
        blocks = document_blocks(model, ids, plan, draws, device, s.dtype, progress=progress)
    r = recover(blocks, ids, data.truth, lambda log_p: truncate(log_p, Decoding(top_p=metrics.NUCLEUS)) > 0)
    return described(r)


def validity(data: Data, new: np.ndarray) -> dict[str, float]:
    """The column of that name for the sampled ids (n, new) after the prompts.

    nan if no document starts in the texts; {} where the truth is not known.
    """
    if data.truth is None:
        return {}
    allowed = data.truth.judge(data.prompts.prompt, new).compressed()
    share = float(allowed.mean()) if len(allowed) else math.nan
    return {"validity": share, "judged_tokens": len(allowed)}


# -----------------------------------------------------------------------------
# Numbers


def model_numbers(
    path: Path, name: str, data: Data, s: Settings, device: torch.device
) -> tuple[dict[str, Any], np.ndarray]:
    """The columns that need the model of one checkpoint, and what was sampled from it (n, new_tokens).

    Degenerate if its probabilities are not numbers.
    """
    model, ckpt = load_model(path, device=device, dtype=get_dtype(s.dtype))
    seeded = of_run(s, ckpt.record)
    draws = model.head.draws(s.samples, seeded.seed)

    def bar(steps: Iterable) -> Iterable:
        return Progress(steps, desc=f"{name}: scoring", leave=False)

    if s.protocol == "paper":
        published = PUBLISHED.get(ckpt.config.name.split("-")[0], (math.nan,) * 3)
        keys = ("published_ppl", "published_self_bleu", "published_distinct_4")
        row = {
            "ppl_train": train_perplexity(model, data, s, draws, device, bar),
            **dict(zip(keys, published)),
        }
    else:
        row = held_out_numbers(model, data, s, draws, device, bar)
        row |= recovery(data, s, model, draws, device, bar)
    del draws  # the texts have some of their own, in s.dtype: two sets may not fit
    return row, sample_texts(model, data.prompts.prompt, seeded, device, name)


def train_perplexity(
    model: LanguageModel,
    data: Data,
    s: Settings,
    draws: list[Weights],
    device: torch.device,
    bar: Callable[[Iterable], Iterable],
) -> float:
    """Perplexity on random training windows, as the paper's protocol has it."""
    block, ids = s.block_size, data.train.ids
    count = min(TRAIN_WINDOWS, len(ids) // (block + 1))
    seen = held_out_prompts(ids, count, 1, block, seed=s.seed)
    windows = np.concatenate(seen, 1)
    parts = [score(model, w, block, draws, device, s.dtype) for w in bar(windows)]
    nll = sum(p.nll for p in parts)
    if math.isnan(nll):
        raise Degenerate("its log-probabilities are not numbers")
    return metrics.perplexity(nll, sum(p.tokens for p in parts))


def held_out_numbers(
    model: LanguageModel,
    data: Data,
    s: Settings,
    draws: list[Weights],
    device: torch.device,
    bar: Callable[[Iterable], Iterable],
) -> dict[str, Any]:
    """Perplexities and calibration on the whole held-out split."""
    split, validation = data.split, data.validation
    asked, reads = (draws, device, s.dtype), s.block_size
    tau = fitted_temperature(model, validation.ids, *asked, context=reads) if validation else None
    calibrated = Calibrated(tau)
    r = score(model, split.ids, s.stride, *asked, each=calibrated, progress=bar, context=reads)
    row = {"ppl_tok": metrics.perplexity(r.nll, r.tokens)}
    if split.words:
        row["ppl_word"] = metrics.perplexity(r.nll, split.words)
    if split.bytes:
        row["bits_per_byte"] = metrics.bits_per_byte(r.nll, split.bytes)
    return row | {
        "ppl_eps": metrics.perplexity(r.eps_nll, r.tokens),
        **calibrated.numbers(),
        "nll": r.nll,
        "tokens": r.tokens,
        "zero_probability_tokens": r.zeros,
    }


def reference_row(name: str, data: Data, s: Settings) -> tuple[dict[str, Any], list[str]]:
    """The row of a reference, which no model wrote, and its texts."""
    new = reference_texts(name, data.prompts, data.train.ids, s)
    texts = decode(data.tokenizer, data.prompts.prompt, new, s)
    perfect = recovery(data, s, None) if name == "human" else {}
    numbers = text_metrics(texts, s.loops, s.words, s.tokenize) | validity(data, new)
    row = {"name": name, **numbers, **perfect}
    return row, texts


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
