"""The paper's measure: as Shamula et al. 2024 scored, beside their numbers.

Perplexity on random windows of the training text; continuations of prompts from that text, which are scored
along; Self-BLEU as the mean over groups of texts. `python table.py --measure=paper RUNS`.
"""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np

from common.config import Natural, NonNegative, Positive
from common.errors import UserError
from evaluate import metrics
from evaluate.diversity import text_metrics
from evaluate.sampling import held_out_prompts
from evaluate.scoring import TemperedCalibration, score
from evaluate.settings import SampledConfig
from evaluate.text_numbers import Bar, Data, decode
from model import LanguageModel
from tables.columns import Column
from tables.measure import NamedRun
from tables.store import Row
from tables.text import SampledMeasure, SampledSession, settings_line, summary_of
from tables.views import View, problems

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
)
# Shamula et al. 2024, table 1: perplexity, Self-BLEU, Distinct-4. Its Sig-GPT never saw the true token:
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

    def filled_in(self, reads: int) -> Self:
        if self.texts < 2 * self.loops:
            raise UserError(f"texts = {self.texts}: each of {self.loops} loops needs two")
        return super().filled_in(reads)


class PaperSession(SampledSession):
    c: PaperConfig
    kind = ".paper"

    def __init__(self, c: PaperConfig):
        super().__init__(c, "train")
        c, text = self.c, self.split
        prompts = held_out_prompts(text.ids, c.texts, c.prompt_tokens, c.new_tokens, seed=c.seed)
        self.data = Data(text, text, None, self.tokenizer, prompts)
        digests = {"tokenizer": self.tokenizer.fingerprint, "train": text.info["sha256"]}
        self.settings = c.settings(**digests)

    def scores(self, model: LanguageModel, c: PaperConfig, bar: Bar) -> Row:
        """Perplexity on random training windows, the same for all rows."""
        text, block = self.split.ids, c.block_size
        count = min(TRAIN_WINDOWS, len(text) // (block + 1))
        windows = np.concatenate(held_out_prompts(text, count, 1, block, seed=self.c.seed), 1)
        asked = (model.head.draws(c.samples, c.seed), self.device, c.dtype)
        sound = TemperedCalibration()  # Degenerate if its log-probabilities are not numbers
        parts = [score(model, window, block, *asked, each=sound) for window in bar(windows)]
        return {"ppl_train": metrics.perplexity(sum(p.nll for p in parts), sum(p.tokens for p in parts))}

    def text_numbers(self, name: str, new: np.ndarray, reference: bool = False) -> Row:
        """Each text is scored with its prompt."""
        texts = decode(self.tokenizer, np.concatenate((self.data.prompts.prompt, new), 1))
        self.keep_texts(name, texts)
        loops = [text_metrics(texts[i :: self.c.loops]) for i in range(self.c.loops)]
        row = {key: float(np.mean([values[key] for values in loops])) for key in loops[0]}
        if self.c.loops > 1:
            row["self_bleu_sd"] = float(np.std([values["self_bleu"] for values in loops], ddof=1))
        return row

    def numbers(self, subject: NamedRun) -> Row:
        published = PUBLISHED.get(subject.ckpt.config.name.split("-")[0], (math.nan,) * 3)
        keys = ("published_ppl", "published_self_bleu", "published_distinct_4")
        return dict(zip(keys, published)) | super().numbers(subject)


class PaperMeasure(SampledMeasure):
    name, config, session = "paper", PaperConfig, PaperSession

    def view(self, rows: list[Row]) -> View:
        columns = [column for column in PAPER if any(column.key in row for row in rows)]
        return View.of_summary(summary_of(rows, columns), columns, settings_line(rows), problems(rows))


MEASURE = PaperMeasure()
