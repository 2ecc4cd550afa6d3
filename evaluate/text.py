"""The text measure: perplexity of what is sampled, calibration, and diversity beside human text.

`python eval_diversity.py` is its front door.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from common.errors import checking
from common.files import replacing as whole_file
from evaluate.checks import check_planned, check_text
from evaluate.columns import HONEST, PAPER, Column
from evaluate.diversity import TEXT_METRICS, cut, text_metrics
from evaluate.find import lab_columns, scorers
from evaluate.jobs import data_of
from evaluate.measure import Measure, NamedRun, Session
from evaluate.names import REFERENCES
from evaluate.settings import GONE_CUTS, PaperConfig, Settings, TextConfig
from evaluate.store import Row
from evaluate.summary import has_seeds, quality_of, summarise
from evaluate.text_numbers import decode, model_numbers, open_all, reference_row, text_intervals
from evaluate.views import View, problems, samples_file, table
from model import context


def scorer_digest(c: TextConfig) -> str:
    """SHA-256 of the weights that `c` judges texts by; "" for none."""
    return scorers().digest(c.scorer) if c.scorer else ""


class TextSession(Session):
    """The runs that are asked for, and the data that they are measured on."""

    def __init__(self, c: TextConfig):
        """UserError for all that cannot be measured, before any work."""
        self.c = c
        self.subjects, self.s, self.data, self.device = open_all(c, scorer_digest(c))
        self.settings, self.reference_names = vars(self.s), REFERENCES
        self.judge = scorers().judge(c.scorer, self.data, self.s, self.device) if c.scorer else None

    def whole(self, row: Row) -> bool:
        """Whether a kept row has its texts, each column that is measured today, intervals over as many
        halves, and MAUVE, if that package was not installed then."""
        if "problem" in row:
            return True
        columns = TEXT_METRICS.keys() if row.get("reference") else self.columns
        has_texts = not self.c.out or self._has_texts(row["name"])
        as_many = row.get("halves", self.c.halves) == self.c.halves
        return columns <= row.keys() and has_texts and as_many and not (self.judge and self.judge.lacks(row))

    @property
    def columns(self) -> set[str]:
        """The columns that every run has on these data; what it has spent is no measurement."""
        split, validation, s = self.data.split, self.data.validation, self.s
        known = PAPER if s.protocol == "paper" else HONEST
        some: dict[str, Any] = {"ppl_word": split.words, "bits_per_byte": split.bytes, "short_texts": s.words}
        some |= {"ece_fitted": validation, "ppl_fitted": validation, "self_bleu_sd": s.loops > 1}
        some |= dict.fromkeys(("compression", "steps", "train_tokens", "teacher_tokens"))
        return {column.key for column in known if some.get(column.key, True)}

    def _has_texts(self, name: str) -> bool:
        """Whether as many as are to be kept are there."""
        file, texts = samples_file(Path(self.c.out), name), self.s.texts
        return file.is_file() and file.read_bytes().count(b"\n") >= min(self.c.texts_kept or texts, texts)

    def numbers(self, subject: NamedRun) -> Row:
        """The numbers of a run; its texts go to OUT.samples."""
        row, new = model_numbers(subject, self.data, self.s, self.device)
        texts = decode(self.data.tokenizer, self.data.prompts.prompt, new, self.s)
        self._write_texts(subject.name, texts)
        try:
            row |= text_metrics(texts, self.s.loops, self.s.words, self.s.tokenize)
            row |= self.judge.numbers(texts, self.data.prompt_texts) if self.judge else {}
        except ValueError as error:  # the model's other numbers stand
            row["problem"] = f"its texts cannot be measured, {error}"
        return row

    def references(self) -> list[Row]:
        """Human text, noise and a loop, with intervals over their texts."""
        rows = []
        for name in REFERENCES:
            with checking():  # texts that are too short to be compared
                row, texts = reference_row(name, self.data, self.s)
                if self.judge:  # UserError if it cannot read those of a reference
                    row |= self.judge.numbers(texts, self.data.prompt_texts, halves=self.c.halves)
            if self.c.out and self.s.protocol != "paper":  # else nobody sees them
                words = [cut(t, self.s.words, self.s.tokenize) for t in texts]
                row |= text_intervals(words, self.c.halves, self.s.tokenize)
                row["halves"] = self.c.halves
            self._write_texts(name, texts)
            rows.append(row)
        rows[0]["about"] = self._about()
        return rows

    def _about(self) -> dict[str, Any]:
        """What a view says of the data beside the settings."""
        split = self.data.split.info
        about: dict[str, Any] = {"tokenizer": self.data.tokenizer.name, "complete": split["complete"]}
        return about | ({"scorer": self.judge.note} if self.judge else {})

    def _write_texts(self, name: str, texts: list[str]) -> None:
        if not self.c.out:
            return
        with whole_file(samples_file(Path(self.c.out), name)) as file:
            for text in texts[: self.c.texts_kept or None]:
                file.write((json.dumps(text, ensure_ascii=False) + "\n").encode())


class TextMeasure(Measure):
    name, config, session = "text", PaperConfig, TextSession

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
    known = PAPER if rows[0]["settings"]["protocol"] == "paper" else (*HONEST, *lab_columns())
    return tuple(c for c in known if any(c.key in r for r in rows))


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
