"""The flags of the measures of texts, and what two rows of one table must share."""

import hashlib
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from common.config import AtLeast2, Draws, Dtype, Natural, Positive, Seed
from common.errors import UserError
from evaluate.decoding import Decoding

LEAST_WORDS = 4  # a text is not cut to fewer: the metrics count 4-grams
# what two rows of one table need not share
NOT_SETTINGS = {"checkpoints", "data", "out", "columns", "texts_kept", "halves", "device"}


@dataclass(frozen=True)
class SampledConfig(Decoding):
    # fmt: off
    checkpoints: list[str]          # [NAME=]RUN ...: out folders of training runs, or checkpoints in them,
    #                                 and the names of their rows
    data: str = ""                  # the prepared data folder; empty: the one of the first run
    block_size: Natural = 0         # tokens that each model reads at once; 0: the fewest that one of them can
    # what is sampled
    texts: AtLeast2 = 100           # of each row
    prompt_tokens: Natural = 50     # 0: the whole block
    new_tokens: Positive = 200
    samples: Draws = 8              # weight draws of Bayesian rows
    seed: Seed = 1337               # what is drawn depends on it and on the run's own training seed
    # the table
    out: str = ""                   # writes OUT.jsonl, its views OUT.md, .csv and .tex (LaTeX, booktabs),
    #                                 and OUT.samples/; rows of unchanged checkpoints in it are kept
    columns: str = ""               # of the table, by their keys: ppl_eps,self_bleu; empty: all
    texts_kept: Natural = 12        # texts of each row in OUT.samples; 0: all
    # machine
    device: str = "auto"            # auto, cpu, cuda, cuda:N or mps
    dtype: Dtype = "float32"        # of matrix products: float32, bfloat16, float16, or auto
    # fmt: on

    def filled_in(self, reads: int) -> Self:
        """This with values in place of 0, for models that read `reads` tokens at once. UserError naming a
        value that they cannot have."""
        block_size = self.block_size or reads
        c = replace(self, block_size=block_size, prompt_tokens=self.prompt_tokens or block_size)
        if max(block_size, c.prompt_tokens) > reads:
            sizes = f"block_size = {block_size}, prompt_tokens = {c.prompt_tokens}"
            raise UserError(f"{sizes}: one model reads {reads} tokens: give --block_size={reads}")
        return c

    def settings(self, **digests: str) -> dict[str, Any]:
        """What two rows of one table must share; with the `digests` of what they were measured with."""
        return {key: value for key, value in vars(self).items() if key not in NOT_SETTINGS} | digests


@dataclass(frozen=True)
class TextConfig(SampledConfig):
    # fmt: off
    # what is scored
    split: Literal["validation", "test"] = "test"
    stride: Natural = 0             # of the scoring windows; 0: min(512, block_size)
    # what is measured of the texts
    words: Natural = 0              # of each text, its first; 0: as many as 95% of the human continuations
    #                                 have, at least 20. Shorter texts stay as they are
    # what is a word, by sacreBLEU; auto: 13a, or another of scripts without spaces between words
    tokenize: Literal["auto", "13a", "zh", "ja-mecab", "char"] = "auto"
    scorer: str = ""                # a run, or a model of transformers: generative perplexity and, where the
    #                                 package mauve-text is installed, MAUVE (labs/scorers)
    halves: AtLeast2 = 200          # random halves of the references' texts, for their intervals
    # fmt: on

    def filled_in(self, reads: int) -> Self:
        c = super().filled_in(reads)
        c = replace(c, stride=c.stride or min(512, c.block_size))
        fits = f"at most block_size = {c.block_size}"
        for key, works, why in (
            ("words", c.words == 0 or c.words >= LEAST_WORDS, f"at least {LEAST_WORDS}"),
            ("new_tokens", c.prompt_tokens + c.new_tokens <= c.block_size, f"with the prompt {fits}"),
            ("stride", c.stride <= c.block_size, fits),
        ):
            if not works:
                raise UserError(f"{key} = {getattr(c, key)}: give {why}")
        return c


def run_seed(seed: int, config: dict[str, Any]) -> int:
    """The seed of one run, derived from the table's and from the run's own training seed.

    So the texts of two seeds are independent, and rows of one training seed share their random numbers.
    """
    digest = hashlib.sha256(f"{seed} {config.get('seed')}".encode()).digest()
    return int.from_bytes(digest[:6])
