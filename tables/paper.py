"""The paper's measure: as Shamula et al. 2024 scored, beside their numbers.

Perplexity on random windows of the training text; continuations of prompts from that text, which are scored
along; Self-BLEU as the mean over groups of texts. `python table.py --measure=paper RUNS`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from common.config import Natural, NonNegative, Positive
from common.device import choose_dtype, get_device, get_dtype
from common.errors import UserError, checking
from common.log import progress_bar
from data.open import tokenizer_of
from evaluate import metrics
from evaluate.diversity import text_metrics
from evaluate.sampling import Prompts, held_out_prompts, sample_texts
from evaluate.scoring import TemperedCalibration, score
from evaluate.settings import SampledConfig, run_seed
from evaluate.text_numbers import decode, reference_texts
from model import context
from tables.checks import check_planned, check_text, open_split
from tables.columns import Column
from tables.measure import Measure, NamedRun
from tables.names import REFERENCES
from tables.store import Row
from tables.text import TextsSession, open_text_runs, settings_line, summary_of
from tables.views import View, problems
from training.run import load_model

TRAIN_WINDOWS = 200  # that are scored

# fmt: off
PAPER = (
    Column("ppl_train", "PPL(train)", ".2f", "low", "exp(NLL / tokens) of 200 random training windows"),
    Column("self_bleu", "Self-BLEU", ".2f", "human", "sacreBLEU, prompt included, mean of the loops"),
    Column("self_bleu_sd", "sd", ".2f", "", "standard deviation of Self-BLEU over the loops"),
    Column("distinct_4", "Distinct-4", ".4f", "human", "prompt included, mean of the loops"),
    Column("published_ppl", "publ. PPL", ".2f", "", "as published, of a softmax over sigmoid logits"),
    Column("published_self_bleu", "publ. Self-BLEU", ".2f", "", "as published"),
    Column("published_distinct_4", "publ. Distinct-4", ".4f", "", "as published"),
)# Shamula et al. 2024, table 1: perplexity, Self-BLEU, Distinct-4. Its Sig-GPT never saw the true token:
# that is sig_gpt_as_published, and our sig_gpt has no published numbers
PUBLISHED = {
    "baseline": (6.1855, 27.1660, 0.9709),
    "smooth_gpt": (6.6225, 26.6854, 0.9743),
    "smooth_gpt_10": (7.2704, 18.3164, 0.9901),
    "bayes_gpt": (10.0340, 28.3591, 0.9641),
    "sig_gpt_as_published": (2134.7043, 18.5969, 0.9907),
    "sig_gpt_sum": (50259.5078, 16.4033, 0.9901),
    "sig_gpt_pw": (2028.1080, 18.2633, 0.9907),
    "bayes_sig_gpt": (2257.3240, 18.5297, 0.9907),
}
# fmt: on


@dataclass(frozen=True, kw_only=True)
class PaperConfig(SampledConfig):
    # fmt: off
    loops: Positive = 10            # groups that the texts are measured in; their mean is reported
    prompt_tokens: Natural = 0
    new_tokens: Positive = 500      # they may go on beyond the block
    temperature: NonNegative = 0.8
    top_k: Natural = 200
    # fmt: on


# what two rows need not share
NOT_SETTINGS = ("checkpoints", "data", "out", "columns", "texts_kept", "device")


def settings_of(c: PaperConfig, reads: int) -> dict[str, Any]:
    """What two rows must share, of models that read so many tokens. UserError naming what cannot be."""
    block_size = c.block_size or reads
    prompt = c.prompt_tokens or block_size
    if max(prompt, block_size) > reads or c.texts < 2 * c.loops:
        raise UserError(
            f"block_size = {block_size}, prompt_tokens = {prompt}, texts = {c.texts}: the models read "
            f"{reads} tokens; each of {c.loops} loops needs two texts"
        )
    known = {k: v for k, v in vars(c).items() if k not in NOT_SETTINGS}
    return known | {"block_size": block_size, "prompt_tokens": prompt}


class PaperSession(TextsSession):
    c: PaperConfig
    reference_names = REFERENCES

    def __init__(self, c: PaperConfig):
        """UserError for all that cannot be measured, before any work."""
        self.device = get_device(c.device)
        self.c = c = replace(c, dtype=choose_dtype(c.dtype, self.device).name)
        self.subjects = open_text_runs(c)
        self.train, self.tokenizer = (
            open_split(self.subjects, c.data, "train"),
            tokenizer_of(self.subjects[0].ckpt),
        )
        known = settings_of(c, min(context(run.ckpt.record) for run in self.subjects))
        self.s = replace(c, block_size=known["block_size"], prompt_tokens=known["prompt_tokens"])
        hashes = {"tokenizer": self.tokenizer.fingerprint, "train": self.train.info["sha256"]}
        self.settings = known | hashes
        self.prompts = self._windows(c.texts, self.s.prompt_tokens, c.new_tokens)

    def _windows(self, count: int, prompt: int, new: int) -> Prompts:
        return held_out_prompts(self.train.ids, count, prompt, new, seed=self.c.seed)

    def whole(self, row: Row) -> bool:
        return "problem" in row or self.has_texts(row["name"])

    def numbers(self, subject: NamedRun) -> Row:
        model, ckpt = load_model(subject.path, device=self.device, dtype=get_dtype(self.c.dtype))
        s, block = replace(self.s, seed=run_seed(self.s.seed, ckpt.record)), self.s.block_size
        published = PUBLISHED.get(ckpt.config.name.split("-")[0], (math.nan,) * 3)
        row: Row = dict(zip(("published_ppl", "published_self_bleu", "published_distinct_4"), published))

        # Perplexity on random training windows
        draws = model.head.draws(s.samples, s.seed)
        count = min(TRAIN_WINDOWS, len(self.train.ids) // (block + 1))
        sound = TemperedCalibration()  # Degenerate if its log-probabilities are not numbers
        bar = partial(progress_bar, desc=f"{subject.name}: scoring", leave=False)
        windows = np.concatenate(self._windows(count, 1, block), 1)
        parts = [score(model, w, block, draws, self.device, s.dtype, each=sound) for w in bar(windows)]
        row["ppl_train"] = metrics.perplexity(sum(p.nll for p in parts), sum(p.tokens for p in parts))

        del draws  # the texts have some of their own, in s.dtype: two sets may not fit
        new = sample_texts(model, self.prompts.prompt, s, self.device, subject.name)
        try:
            return row | self._text_numbers(subject.name, new)
        except ValueError as error:  # the model's other numbers stand
            return row | {"problem": f"its texts cannot be measured, {error}"}

    def references(self) -> list[Row]:
        """Human text, noise and a loop."""
        rows: list[Row] = []
        for name in REFERENCES:
            new = reference_texts(name, self.prompts, self.train.ids, self.c.seed)
            with checking():  # texts that are too short to be compared
                rows.append({"name": name} | self._text_numbers(name, new))
        rows[0]["about"] = {"tokenizer": self.tokenizer.name, "complete": self.train.info["complete"]}
        return rows

    def _text_numbers(self, name: str, new: np.ndarray) -> Row:
        """Of continuations (n, new_tokens), each behind its prompt; the texts are kept."""
        texts = decode(self.tokenizer, np.concatenate((self.prompts.prompt, new), 1))
        self.keep_texts(name, texts)
        loops = [text_metrics(texts[i :: self.c.loops]) for i in range(self.c.loops)]
        row = {key: float(np.mean([values[key] for values in loops])) for key in loops[0]}
        if self.c.loops > 1:
            row["self_bleu_sd"] = float(np.std([values["self_bleu"] for values in loops], ddof=1))
        return row


class PaperMeasure(Measure):
    name, config, session = "paper", PaperConfig, PaperSession

    def check(self, c: PaperConfig, wanted: Sequence[dict[str, Any]]) -> dict[str, Any]:
        for config in wanted:
            check_text(Path(config["out_dir"]), config["dataset"])
        check_planned(wanted)
        known = settings_of(c, min(context(config) for config in wanted))
        return {key: value for key, value in known.items() if value != "auto"}

    def view(self, rows: list[Row]) -> View:
        columns = tuple(column for column in PAPER if any(column.key in row for row in rows))
        return View.of_summary(summary_of(rows, columns), columns, settings_line(rows), problems(rows))


MEASURE = PaperMeasure()
