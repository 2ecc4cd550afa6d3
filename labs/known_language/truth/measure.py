"""The truth measure: how far runs are from the known language's own next-word distributions.

    python table.py --measure=truth out/baseline-tiny out/entmax15-tiny --out=out/demo

Of each run the numbers of labs/known_language/columns.py, those of `Language.score`, and at a few places what
it believes of the next word, beside the truth. `validity` is of texts that begin a document.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from common.config import Draws, Dtype, Natural, Positive, Seed
from common.device import autocast, choose_dtype, float64_device, get_device, get_dtype
from common.errors import UserError, checking
from data.tokens import TokenFile
from evaluate.sampling import generate, weight_draws
from evaluate.settings import run_seed
from labs.known_language.columns import COLUMNS
from labs.known_language.grammar.machine import UNKNOWN, Machine
from labs.known_language.grammar.prepare import GrammarSettings
from labs.known_language.library import Language
from labs.known_language.recovery import document_windows
from model import context
from tables.checks import check_comparable, check_planned, open_split
from tables.measure import Measure, NamedRun, Session, open_runs
from tables.store import Row
from tables.summary import grouped, has_seeds
from tables.text import by_seed, summary_of
from tables.views import View, problems, table
from training.run import Degenerate, load_model

WORDS = 8  # of a place, by the truth's probability
NEW_TOKENS = 100  # of each sampled text


@dataclass
class LanguageConfig:
    # fmt: off
    checkpoints: list[str]          # [NAME=]RUN ...: out folders of training runs, or checkpoints in them
    data: str = ""                  # the prepared data folder; empty: the one of the first run
    samples: Draws = 8              # weight draws of Bayesian rows
    seed: Seed = 1337               # of what is drawn
    device: str = "auto"            # auto, cpu, cuda, cuda:N or mps
    dtype: Dtype = "float32"        # of matrix products: float32, bfloat16, float16, or auto
    out: str = ""                   # writes OUT.jsonl and OUT.md
    #                                 rows of unchanged checkpoints in it are kept
    # fmt: on

    def settings(self) -> dict[str, Any]:
        """What two rows must share to stand in one table, as far as the flags say it."""
        left_out = "checkpoints", "data", "device", "dtype", "out"
        return {key: value for key, value in vars(self).items() if key not in left_out}


@dataclass
class TruthConfig(LanguageConfig):
    # fmt: off
    split: Literal["train", "validation", "test"] = "test"
    texts: Positive = 50            # of 100 tokens, that the grammar judges
    places: Natural = 4             # at which next words are shown
    # fmt: on


# -----------------------------------------------------------------------------
# The language and its runs


def language_of(split: TokenFile) -> Language:
    """The language of a prepared split. UserError if nobody knows it, or if other rules wrote the split."""
    source, is_known, _ = split.info["source"].partition(" language=")
    if not is_known:
        raise UserError(f"{split.path}: nobody knows the truth of it; this needs dataset = grammar")
    with checking():
        language = Language(**vars(GrammarSettings.parse(source)))
    if not np.array_equal(getattr(language, split.path.stem), split.ids):
        raise UserError(f"{split.path}: other rules wrote it than today's: prepare it with --force")
    return language


class LanguageMeasure(Measure):
    """A measure of runs on the language, of LanguageSession."""

    def check(self, c: LanguageConfig, wanted: Sequence[dict[str, Any]]) -> dict[str, Any]:
        check_planned(wanted)
        if others := {config["dataset"] for config in wanted} - {"grammar"}:
            raise UserError(f"dataset = {min(others)}: nobody knows the truth of it; this needs grammar")
        return c.settings()


class LanguageSession(Session):
    """Runs on the language, and `splits` of it."""

    reference_names = ("truth",)

    def __init__(self, c: Any, splits: Sequence[str]):
        self.c, self.device = c, get_device(c.device)
        self.dtype = choose_dtype(c.dtype, self.device).name
        self.subjects: Sequence[NamedRun] = open_runs(c.checkpoints)
        check_comparable(self.subjects)
        data = {split: open_split(self.subjects, c.data, split) for split in splits}
        self.hashes = {split: opened.info["sha256"] for split, opened in data.items()}
        self.languages = {split: language_of(opened) for split, opened in data.items()}
        self.block_size = min(context(run.ckpt.record) for run in self.subjects)
        self.settings = c.settings() | {"block_size": self.block_size, "dtype": self.dtype}


class LoadedRun:
    """A run as the library asks a model: token ids (B, T) -> log p (B, T, V)."""

    def __init__(self, run: NamedRun, session: LanguageSession):
        c, self.device, self.dtype = session.c, session.device, session.dtype
        self.model, ckpt = load_model(run.path, device=self.device, dtype=get_dtype(self.dtype))
        self.draws = weight_draws(self.model, ckpt.record, c.samples, c.seed, self.dtype)
        self.seed = run_seed(c.seed, ckpt.record)

    @torch.no_grad()
    def __call__(self, tokens: Tensor) -> Tensor:
        """Degenerate if they are not numbers."""
        with autocast(self.device, self.dtype):
            hidden = self.model.trunk(tokens.to(self.device))
            log_p = self.model.head.log_probs(hidden.flatten(0, 1), self.draws)
        if log_p.isnan().any():
            raise Degenerate("its log-probabilities are not numbers")
        return log_p.unflatten(0, tokens.shape)

    def write(self, texts: int, end: int) -> np.ndarray:
        """Texts (n, NEW_TOKENS) that begin a document."""
        generator = torch.Generator(float64_device(self.device)).manual_seed(self.seed)
        start = torch.full((texts, 1), end, device=self.device)
        drawn = generate(self.model, start, NEW_TOKENS, self.draws, generator=generator, dtype=self.dtype)
        return torch.stack([token for token, _ in drawn], 1).cpu().numpy()


def validity(machine: Machine, texts: np.ndarray) -> float:
    """The share of words of `texts` (n, L), which begin documents, that the grammar allows: a document counts
    up to its first forbidden word."""
    states = machine.parse(texts)
    judged = states != UNKNOWN
    return float(machine.allows(states[judged], texts[judged]).mean())


# -----------------------------------------------------------------------------
# The measure


class TruthSession(LanguageSession):
    def __init__(self, c: TruthConfig):
        super().__init__(c, [c.split])
        self.settings |= {"corpus": self.hashes[c.split]}
        self.language = self.languages[c.split]
        self.places = self.open_places()

    def references(self) -> list[Row]:
        """A perfect model, and the words of each place."""
        L = self.language
        with checking():  # a split that is too short for a window
            score = L.score(L.log_probs, self.c.split, self.block_size)
        row = {"name": "truth", **score, "validity": 1.0}
        name = lambda i, text: (L.words[i].strip() or r"\n") + (" (observed)" if i == text[-1] else "")
        places = [[L.decode(text[1:-1]), [name(i, text) for i in words]] for text, words, _ in self.places]
        return [row | {"about": {"places": places}, "beliefs": self.beliefs(L.log_probs)}]

    def numbers(self, subject: NamedRun) -> Row:
        run, machine = LoadedRun(subject, self), self.language.machine
        row = self.language.score(run, self.c.split, self.block_size)
        row["validity"] = validity(machine, run.write(self.c.texts, machine.end))
        return row | {"beliefs": self.beliefs(run)}

    def open_places(self) -> list[tuple[np.ndarray, list[int], np.ndarray]]:
        """(text, words, which of all are valid): texts from the end token before a document to the word that
        is asked for, spread evenly over the documents and over the places in them; and the truth's likeliest
        words there, with the observed one."""
        ids = getattr(self.language, self.c.split)
        plan, out = document_windows(np.flatnonzero(ids == self.language.machine.end), self.block_size), []
        for n, i in enumerate(np.linspace(0, len(plan) - 1, min(self.c.places, len(plan))).astype(int)):
            start, stop = plan[i]
            text = ids[start : start + 2 + int((n + 1) * 0.618033988749895 % 1 * stop)]
            p = self.language.log_probs(torch.from_numpy(text[None, :-1]))[0, -1].exp().numpy()
            likely = [i for i in (-p).argsort(kind="stable")[:WORDS].tolist() if p[i] > 0]
            out.append((text, [*dict.fromkeys([*likely, int(text[-1])])], p > 0))
        return out

    def beliefs(self, model: Callable[[Tensor], Tensor]) -> list[list[float]]:
        """At each place a model's p of the words, of all valid ones but the observed, and of all others."""
        out = []
        for text, words, valid in self.places:
            p = model(torch.from_numpy(text[None, :-1]))[0, -1].double().exp().cpu().numpy()
            forbidden, observed = p[~valid].sum(), p[text[-1]]
            out.append([*p[words].tolist(), float(p.sum() - forbidden - observed), float(forbidden)])
        return out


class TruthMeasure(LanguageMeasure):
    name, config, session = "truth", TruthConfig, TruthSession

    def view(self, rows: list[Row]) -> View:
        """A line a training, and what the first run of each believes at the places."""
        summary = summary_of(rows, COLUMNS)
        models = [row for row in summary if "runs" in row]
        parts: list[Any] = [by_seed(models, COLUMNS)] if has_seeds(rows) else []
        return View.of_summary(summary, COLUMNS, *parts, *places(rows), problems(rows))


def places(rows: list[Row]) -> list[pd.DataFrame]:
    """For each place of the text, which no run was trained on, its words and their probabilities."""
    first = [runs[0] for runs in grouped(row for row in rows if "beliefs" in row).values()]
    truth, out = next((row for row in rows if row.get("reference")), {}), []
    for k, (before, names) in enumerate(truth["about"]["places"] if truth else ()):
        beliefs = [row["beliefs"][k] for row in (truth, *first)]
        begun = " ".join(before.split("\n")[-1].split()[-8:])  # of its document alone
        names = [*names, "all valid alternatives", "all forbidden words"]
        lines = [[name, *(f"{p:.4g}" for p in each)] for name, *each in zip(names, *beliefs)]
        out.append(table([f"next after “{begun}”", "truth", *(row["row"] for row in first)], lines))
    return out


MEASURE = TruthMeasure()
