"""The text measure: perplexity of what is sampled, calibration, and diversity beside human text.

Flags (evaluate/settings.py) -> runs of one text, and its splits -> the numbers of a run, and of texts that no
model wrote -> the table. `python eval_diversity.py` is its front door.
"""

import json
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from common.device import choose_dtype, get_device, get_dtype
from common.errors import UserError, checking
from common.files import beside, replacing
from common.log import progress_bar
from data.open import tokenizer_of
from data.tokens import open_tokens
from evaluate.diversity import SPACED, TEXT_METRICS, common_words, cut, text_metrics, tokenizer_for, words_in
from evaluate.sampling import held_out_prompts, sample_texts
from evaluate.settings import LEAST_WORDS, SampledConfig, TextConfig, run_seed
from evaluate.text_numbers import Bar, Data, decode, held_out_numbers, reference_texts
from model import LanguageModel, context
from tables.checks import check_comparable, check_planned, check_text, open_split
from tables.columns import HONEST, Column
from tables.find import lab_columns, scorers
from tables.jobs import data_of
from tables.measure import Measure, NamedRun, Session, open_runs
from tables.names import REFERENCES
from tables.statistics import half_sampling_interval
from tables.store import Row
from tables.summary import has_seeds, quality_of, summarise
from tables.views import View, problems, samples_file, table
from training.run import load_model

ENOUGH_WORDS = 20  # a text is not cut to fewer but by --words
NOT_MEASURED = {"compression", "steps", "train_tokens", "teacher_tokens"}  # known of some runs alone

# -----------------------------------------------------------------------------
# Runs, their texts, and texts that no model wrote: here, and with the paper's protocol (tables/paper.py)


class SampledSession(Session):
    """Runs of one text, and the texts of each row, which are kept in OUT.samples, or OUT.KIND.samples."""

    c: SampledConfig
    data: Data
    kind = ""
    reference_names = REFERENCES

    def __init__(self, c: SampledConfig, split: str):
        """UserError for all that cannot be measured, before any work."""
        self.device = get_device(c.device)
        self.subjects: Sequence[NamedRun] = open_runs(c.checkpoints)
        check_comparable(self.subjects)
        for run in self.subjects:
            check_text(run.path, run.ckpt.config.dataset)
        first = self.subjects[0]
        self.split, self.tokenizer = open_split(self.subjects, c.data, split), tokenizer_of(first.ckpt)
        check_text(first.path, first.ckpt.config.dataset, self.split.given)
        # a model of any order reads one token less than its block: then all others do, too
        c = c.filled_in(min(context(run.ckpt.record) for run in self.subjects))
        self.c = replace(c, dtype=choose_dtype(c.dtype, self.device).name)

    @abstractmethod
    def scores(self, model: LanguageModel, c: Any, bar: Bar) -> Row:
        """How well a model predicts text; `c` has the run's own seed. Degenerate if it gives no numbers."""

    @abstractmethod
    def text_numbers(self, name: str, new: np.ndarray, reference: bool = False) -> Row:
        """Of continuations (n, new_tokens); keeps their texts. ValueError if they are too short for a metric.

        reference  whether no model wrote them
        """

    def numbers(self, subject: NamedRun) -> Row:
        model, ckpt = load_model(subject.path, device=self.device, dtype=get_dtype(self.c.dtype))
        c = replace(self.c, seed=run_seed(self.c.seed, ckpt.record))
        row = self.scores(model, c, partial(progress_bar, desc=f"{subject.name}: scoring", leave=False))
        new = sample_texts(model, self.data.prompts.prompt, c, self.device, subject.name)
        try:
            return row | self.text_numbers(subject.name, new)
        except ValueError as error:  # the model's other numbers stand
            return row | {"problem": f"its texts cannot be measured, {error}"}

    def references(self) -> list[Row]:
        """Human text, noise and a loop. The first row says what a view says of the data."""
        rows: list[Row] = []
        for name in REFERENCES:
            new = reference_texts(name, self.data.prompts, self.data.train.ids, self.c.seed)
            with checking():  # a split too poor to be compared with, or texts that the scorer cannot read
                rows.append({"name": name} | self.text_numbers(name, new, reference=True))
        rows[0]["about"] = {"tokenizer": self.tokenizer.name, "complete": self.split.info["complete"]}
        return rows

    def whole(self, row: Row) -> bool:
        """Whether a kept row has as many texts as are to be kept."""
        if "problem" in row or not self.c.out:
            return True
        file, texts = self.samples_file(row["name"]), self.c.texts
        return file.is_file() and file.read_bytes().count(b"\n") >= min(self.c.texts_kept or texts, texts)

    def samples_file(self, name: str) -> Path:
        return samples_file(beside(Path(self.c.out), self.kind), name)

    def keep_texts(self, name: str, texts: list[str]) -> None:
        if not self.c.out:
            return
        with replacing(self.samples_file(name)) as file:
            for text in texts[: self.c.texts_kept or None]:
                file.write((json.dumps(text, ensure_ascii=False) + "\n").encode())


class SampledMeasure(Measure):
    def check(self, c: Any, wanted: Sequence[dict[str, Any]]) -> dict[str, Any]:
        for config in wanted:
            check_text(Path(config["out_dir"]), config["dataset"])
        check_planned(wanted)
        settings = c.filled_in(min(context(config) for config in wanted)).settings()
        # what the texts and the device decide is not known yet, nor where nothing is prepared the corpus
        unknown = {"dtype": "auto", "tokenize": "auto", "words": 0}
        known = {key: value for key, value in settings.items() if unknown.get(key, ()) != value}
        return known | ({"train": train} if (train := data_of(wanted[0], c.data)) else {})


# -----------------------------------------------------------------------------
# The measure


class TextSession(SampledSession):
    c: TextConfig

    def __init__(self, c: TextConfig):
        super().__init__(c, c.split)
        train, validation = (self.split.path.with_name(f"{name}.bin") for name in ("train", "validation"))
        fitted_to = open_split(self.subjects, c.data, "validation") if validation.is_file() else None
        prompts = held_out_prompts(self.split.ids, self.c.texts, self.c.prompt_tokens, self.c.new_tokens)
        self.data = Data(open_tokens(train), self.split, fitted_to, self.tokenizer, prompts)

        # What is a word of the human texts, and to how many of them all texts are cut
        human = decode(self.tokenizer, prompts.human)
        tokenize: Any = tokenizer_for(human) if c.tokenize == "auto" else c.tokenize
        with checking():  # the tokenizer may need a package
            words = c.words or max(LEAST_WORDS, common_words(human, tokenize))
        least = LEAST_WORDS if c.words else ENOUGH_WORDS
        if min(words, max(len(words_in(text, tokenize)) for text in human)) < least:
            raise UserError(
                f"new_tokens = {c.new_tokens}: human texts have {words} words, fewer than {least}: give more"
            )

        self.c = replace(self.c, words=words, tokenize=tokenize)
        self.settings = self.c.settings(
            scorer=scorer_digest(c),
            tokenizer=self.tokenizer.fingerprint,
            train=self.data.train.info["sha256"],
            corpus=self.split.info["sha256"],
        )
        self.judge = scorers().judge(c.scorer, self.data, self.c, self.device) if c.scorer else None

    def scores(self, model: LanguageModel, c: TextConfig, bar: Bar) -> Row:
        return held_out_numbers(model, self.data, c, self.device, bar)

    def text_numbers(self, name: str, new: np.ndarray, reference: bool = False) -> Row:
        c, texts = self.c, decode(self.tokenizer, new)
        self.keep_texts(name, texts)
        row: Row = text_metrics(texts, c.words, c.tokenize)
        if self.judge:
            row |= self.judge.numbers(texts, self.data.prompt_texts, halves=c.halves if reference else 0)
        if reference and c.out:  # else nobody sees the intervals
            texts = [cut(text, c.words, c.tokenize) for text in texts]
            row |= text_intervals(texts, c.halves, c.tokenize) | {"halves": c.halves}
        return row

    def references(self) -> list[Row]:
        rows = super().references()
        rows[0]["about"] |= {"scorer": self.judge.note} if self.judge else {}
        return rows

    def whole(self, row: Row) -> bool:
        """Also whether it has each column that is measured today, intervals over as many halves, and MAUVE,
        if that package was not installed then."""
        if "problem" in row:
            return True
        if row.get("reference"):
            columns, sound = {*TEXT_METRICS}, row.get("halves", self.c.halves) == self.c.halves
        else:
            split, fitted_to = self.data.split, self.data.validation
            applies = {"ppl_word": split.words, "bits_per_byte": split.bytes, **dict.fromkeys(NOT_MEASURED)}
            applies |= {"ece_fitted": fitted_to, "ppl_fitted": fitted_to}
            columns, sound = {column.key for column in HONEST if applies.get(column.key, True)}, True
        sound = sound and not (self.judge and self.judge.lacks(row))
        return sound and columns <= row.keys() and super().whole(row)


def scorer_digest(c: TextConfig) -> str:
    """SHA-256 of the weights that `c` judges texts by; "" for none."""
    return scorers().digest(c.scorer) if c.scorer else ""


def text_intervals(
    texts: list[str], halves: int, tokenize: str, metrics: Mapping[str, Callable[..., float]] = TEXT_METRICS
) -> dict[str, float]:
    """`<key>_ci` of each metric, for texts without a training; nan where a half is too short for it."""
    out = {}
    for key, metric in metrics.items():
        try:
            out[f"{key}_ci"] = half_sampling_interval(texts, partial(metric, tokenize=tokenize), halves)
        except ValueError:
            out[f"{key}_ci"] = math.nan
    return out


class TextMeasure(SampledMeasure):
    name, config, session = "text", TextConfig, TextSession

    @property
    def columns(self) -> Sequence[Column]:  # type: ignore[override]
        return (*HONEST, *lab_columns())

    def check(self, c: TextConfig, wanted: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return super().check(c, wanted) | {"scorer": scorer_digest(c)}

    def view(self, rows: list[Row]) -> View:
        """A line a training, with means over its seeds; under it the main columns seed by seed."""
        columns = [c for c in self.columns if any(c.key in row for row in rows)]
        summary = summary_of(rows, columns)
        parts: list[pd.DataFrame | str] = []
        if has_seeds(rows):
            models = [row for row in summary if "runs" in row]
            noisy = ", ".join(row["name"] for row in models if row["quality_worse"])
            parts.append(by_seed(models, columns))
            parts += [f"Worse than {models[0]['name']} by {quality_of(models)}: {noisy}"] if noisy else []
        return View.of_summary(summary, columns, *parts, settings_line(rows), problems(rows))


MEASURE = TextMeasure()

# -----------------------------------------------------------------------------
# Views

MAIN = ("kl_truth_model", "ppl_eps"), ("self_bleu",)  # of each the first that there is: shown seed by seed
# settings of which a view does not speak: cuts that are off, and digests
USUAL = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "tokenize": SPACED}
DIGESTS = ("train", "corpus", "scorer")


def summary_of(rows: list[Row], columns: Sequence[Column]) -> list[Row]:
    """`summarise`; where no training has several seeds, each run stands under its own name."""
    return summarise(rows if has_seeds(rows) else [row | {"row": row["name"]} for row in rows], columns)


def settings_line(rows: list[Row]) -> str:
    """What all rows share, with what is said of the data; under it the scorer's own note."""
    about: dict[str, Any] = next((row["about"] for row in rows if "about" in row), {})
    given = rows[0]["settings"] | {"tokenizer": "?"} | about
    hidden = {*DIGESTS, *(key for key, usual in USUAL.items() if given.get(key) == usual)}
    hidden |= set() if about.get("complete") is False else {"complete"}  # None: nobody knows
    line = ", ".join(f"{key} {value}" for key, value in given.items() if key not in hidden)
    return "\n\n".join(filter(None, (line, about.get("scorer", ""))))


def by_seed(models: list[Row], columns: Sequence[Column]) -> pd.DataFrame:
    """The value of each seed for the main columns."""
    known = {c.key: c for c in columns}
    main = [known[next(k for k in keys if k in known)] for keys in MAIN if any(k in known for k in keys)]
    seeds = sorted({seed for r in models for seed in r["seeds"] if seed is not None})
    lines = []
    for row in models:
        values = [dict(zip(row["seeds"], row.get(c.key + "_seeds", []))) for c in main]
        each = [(v.get(seed), c.form) for c, v in zip(main, values) for seed in seeds]
        lines.append([row["name"], *("-" if v is None else format(v, form) for v, form in each)])
    return table(["", *(f"{c.title}, seed {seed}" for c in main for seed in seeds)], lines)
