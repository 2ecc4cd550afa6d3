"""The text measure: perplexity of what is sampled, calibration, and diversity beside human text.

`python eval_diversity.py` is its front door.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from common.device import choose_dtype, get_device, get_dtype
from common.errors import UserError, checking
from common.files import replacing as whole_file
from common.log import progress_bar
from data.open import tokenizer_of
from data.tokens import open_tokens
from evaluate.diversity import SPACED, TEXT_METRICS, common_words, cut, text_metrics, tokenizer_for, words_in
from evaluate.sampling import held_out_prompts, sample_texts
from evaluate.settings import LEAST_WORDS, SampledConfig, Settings, TextConfig, run_seed
from evaluate.text_numbers import Data, decode, held_out_numbers, reference_texts
from model import context
from tables.checks import check_comparable, check_planned, check_text, data_folder, open_split
from tables.columns import HONEST, Column
from tables.find import lab_columns, scorers
from tables.jobs import data_of
from tables.measure import Measure, NamedRun, Session, open_runs
from tables.names import REFERENCES
from tables.settings import GONE_CUTS
from tables.statistics import half_sampling_interval
from tables.store import Row
from tables.summary import has_seeds, quality_of, summarise
from tables.views import View, problems, samples_file, table
from training.run import load_model

ENOUGH_WORDS = 20  # a text is not cut to fewer but by --words

# -----------------------------------------------------------------------------
# Runs and data


def scorer_digest(c: TextConfig) -> str:
    """SHA-256 of the weights that `c` judges texts by; "" for none."""
    return scorers().digest(c.scorer) if c.scorer else ""


def open_text_runs(c: SampledConfig) -> list[NamedRun]:
    """The rows that are asked for. UserError if they are not of one text."""
    runs = open_runs(c.checkpoints)
    check_comparable(runs)
    for run in runs:
        check_text(run.path, run.ckpt.config.dataset)
    return runs


def open_text(c: TextConfig, runs: list[NamedRun], scorer: str) -> tuple[Settings, Data]:
    """The settings of rows, and the data that they are measured on, before any work; `scorer`: see
    `Settings.of`. UserError for all that can be wrong."""
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

    # Prompts, and what is a word of the human texts behind them
    prompts = held_out_prompts(split.ids, s.texts, s.prompt_tokens, s.new_tokens)
    human = decode(tokenizer, prompts.human)
    if s.tokenize == "auto":
        s = replace(s, tokenize=tokenizer_for(human))
    with checking():  # the tokenizer may need a package
        words = s.words or max(LEAST_WORDS, common_words(human, s.tokenize))
    least = LEAST_WORDS if s.words else ENOUGH_WORDS
    if min(words, max(len(words_in(text, s.tokenize)) for text in human)) < least:
        raise UserError(f"new_tokens = {s.new_tokens}: human texts have {words} words, fewer than {least}")
    return replace(s, words=words), Data(train, split, validation, tokenizer, prompts)


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


# -----------------------------------------------------------------------------
# The measure


class TextsSession(Session):
    """A measure whose rows have texts, in OUT.samples."""

    c: SampledConfig

    def has_texts(self, name: str) -> bool:
        """Whether as many as are to be kept are there."""
        if not self.c.out:
            return True
        file, texts = samples_file(Path(self.c.out), name), self.c.texts
        return file.is_file() and file.read_bytes().count(b"\n") >= min(self.c.texts_kept or texts, texts)

    def keep_texts(self, name: str, texts: list[str]) -> None:
        if not self.c.out:
            return
        with whole_file(samples_file(Path(self.c.out), name)) as file:
            for text in texts[: self.c.texts_kept or None]:
                file.write((json.dumps(text, ensure_ascii=False) + "\n").encode())


class TextSession(TextsSession):
    """The runs that are asked for, and the data that they are measured on."""

    c: TextConfig

    def __init__(self, c: TextConfig):
        """UserError for all that cannot be measured, before any work."""
        self.device = get_device(c.device)
        self.c = c = replace(c, dtype=choose_dtype(c.dtype, self.device).name)
        self.subjects = open_text_runs(c)
        self.s, self.data = open_text(c, self.subjects, scorer_digest(c))
        self.settings, self.reference_names = vars(self.s), REFERENCES
        self.judge = scorers().judge(c.scorer, self.data, self.s, self.device) if c.scorer else None

    def whole(self, row: Row) -> bool:
        """Whether a kept row has its texts, each column that is measured today, intervals over as many
        halves, and MAUVE, if that package was not installed then."""
        if "problem" in row:
            return True
        columns = TEXT_METRICS.keys() if row.get("reference") else self.columns
        as_many = row.get("halves", self.c.halves) == self.c.halves
        return (
            columns <= row.keys()
            and self.has_texts(row["name"])
            and as_many
            and not (self.judge and self.judge.lacks(row))
        )

    @property
    def columns(self) -> set[str]:
        """The columns that every run has on these data; what it has spent is no measurement."""
        split, validation = self.data.split, self.data.validation
        some: dict[str, Any] = {"ppl_word": split.words, "bits_per_byte": split.bytes}
        some |= {"ece_fitted": validation, "ppl_fitted": validation}
        some |= dict.fromkeys(("compression", "steps", "train_tokens", "teacher_tokens"))
        return {column.key for column in HONEST if some.get(column.key, True)}

    def numbers(self, subject: NamedRun) -> Row:
        """The numbers of a run; its texts go to OUT.samples."""
        model, ckpt = load_model(subject.path, device=self.device, dtype=get_dtype(self.s.dtype))
        seeded = replace(self.s, seed=run_seed(self.s.seed, ckpt.record))
        draws = model.head.draws(seeded.samples, seeded.seed)
        bar = partial(progress_bar, desc=f"{subject.name}: scoring", leave=False)
        row = held_out_numbers(model, self.data, seeded, draws, self.device, bar)
        del draws  # the texts have some of their own, in s.dtype: two sets may not fit
        new = sample_texts(model, self.data.prompts.prompt, seeded, self.device, subject.name)
        texts = decode(self.data.tokenizer, new)
        self.keep_texts(subject.name, texts)
        try:
            row |= text_metrics(texts, self.s.words, self.s.tokenize)
            row |= self.judge.numbers(texts, self.data.prompt_texts) if self.judge else {}
        except ValueError as error:  # the model's other numbers stand
            row["problem"] = f"its texts cannot be measured, {error}"
        return row

    def references(self) -> list[Row]:
        """Human text, noise and a loop, with intervals over their texts."""
        rows, s, data = [], self.s, self.data
        for name in REFERENCES:
            texts = decode(data.tokenizer, reference_texts(name, data.prompts, data.train.ids, s.seed))
            with checking():  # texts that are too short to be compared
                row: Row = {"name": name, **text_metrics(texts, s.words, s.tokenize)}
                if self.judge:  # UserError if it cannot read those of a reference
                    row |= self.judge.numbers(texts, data.prompt_texts, halves=self.c.halves)
            if self.c.out:  # else nobody sees them
                row |= text_intervals([cut(t, s.words, s.tokenize) for t in texts], self.c.halves, s.tokenize)
                row["halves"] = self.c.halves
            self.keep_texts(name, texts)
            rows.append(row)
        rows[0]["about"] = self._about()
        return rows

    def _about(self) -> dict[str, Any]:
        """What a view says of the data beside the settings."""
        split = self.data.split.info
        about: dict[str, Any] = {"tokenizer": self.data.tokenizer.name, "complete": split["complete"]}
        return about | ({"scorer": self.judge.note} if self.judge else {})


class TextMeasure(Measure):
    name, config, session = "text", TextConfig, TextSession

    def check(self, c: TextConfig, wanted: Sequence[dict[str, Any]]) -> dict[str, Any]:
        for config in wanted:
            check_text(Path(config["out_dir"]), config["dataset"])
        check_planned(wanted)
        reads = min(context(config) for config in wanted)  # a model of any order: its block less 1
        s = Settings.of(c, reads, scorer_digest(c), train=data_of(wanted[0], c.data) or "")
        # the corpus' hashes may be known with the runs alone, and what "auto" is with the device; without a
        # scorer, there is none
        return {k: v for k, v in vars(s).items() if v not in ("", "auto") or k == "scorer"}

    def view(self, rows: list[Row]) -> View:
        """A line a training, with means over its seeds; under it the main columns seed by seed."""
        columns = columns_in(rows)
        summary = summary_of(rows, columns)
        models = [row for row in summary if "runs" in row]
        parts: list[pd.DataFrame | str] = [by_seed(models, columns)] if has_seeds(rows) else []
        if noisy := [row["name"] for row in models if row["quality_worse"] and has_seeds(rows)]:
            parts.append(f"Worse than {models[0]['name']} by {quality_of(models)}: {', '.join(noisy)}")
        return View.of_summary(summary, columns, *parts, settings_line(rows), problems(rows))


MEASURE = TextMeasure()

# -----------------------------------------------------------------------------
# Views

MAIN = ("kl_truth_model", "ppl_eps"), ("self_bleu",)  # of each the first that there is: shown seed by seed


def summary_of(rows: list[Row], columns: Sequence[Column]) -> list[Row]:
    """`summarise`; where no training has several seeds, each run stands under its own name."""
    return summarise(rows if has_seeds(rows) else [row | {"row": row["name"]} for row in rows], columns)


def columns_in(rows: list[Row]) -> tuple[Column, ...]:
    """The columns that the rows have a number for."""
    return tuple(c for c in (*HONEST, *lab_columns()) if any(c.key in r for r in rows))


def settings_line(rows: list[Row]) -> str:
    """What all rows share, without digests and cuts that are off; under it the scorer's own note."""
    about: dict[str, Any] = next((r["about"] for r in rows if "about" in r), {})
    off = {**GONE_CUTS, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "tokenize": "13a"}
    given = {k: v for k, v in rows[0]["settings"].items() if off.get(k) != v}
    given |= {"tokenizer": about.get("tokenizer", "?"), **about.get("truth", {})}
    given |= {"complete": False} if about.get("complete") is False else {}
    line = ", ".join(f"{k} {v}" for k, v in given.items() if k not in ("train", "corpus", "scorer"))
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
