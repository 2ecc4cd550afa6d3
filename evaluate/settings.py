"""What the measures of texts are asked for, and what two rows of the text measure must share."""

import hashlib
from dataclasses import dataclass, fields
from typing import Any, Literal

from common.config import AtLeast2, Dtype, Natural, Positive, Seed
from common.errors import UserError
from evaluate.decoding import Decoding

LEAST_WORDS = 4  # a text is not cut to fewer: the metrics count 4-grams


@dataclass(frozen=True)
class SampledConfig(Decoding):
    # fmt: off
    checkpoints: list[str]          # [NAME=]RUN ...: out folders of training runs, or checkpoints in them,
    #                                 and the names of their rows
    data: str = ""                  # the prepared data folder; empty: the one of the first run
    block_size: Natural = 0         # tokens that each model reads at once; 0: the fewest that one of them can
    # what is sampled
    texts: Positive = 100           # of each row
    prompt_tokens: Natural = 50     # 0: the whole block
    new_tokens: Positive = 200
    samples: Positive = 8           # weight draws of Bayesian rows
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


@dataclass(frozen=True)
class Settings(Decoding):
    """What two rows must share to stand in one table."""

    tokenizer: str  # fingerprint
    train: str  # SHA-256 of the training text
    corpus: str  # SHA-256 of the split that is scored
    split: str
    texts: int
    prompt_tokens: int
    new_tokens: int
    words: int  # of each text that are measured; 0: all of them, or not known before the texts are
    samples: int  # weight draws of Bayesian rows
    block_size: int  # context of the models
    stride: int  # of the scoring windows
    seed: int
    dtype: str
    scorer: str = ""  # SHA-256 of the weights that the texts are judged by; "" where they are not
    tokenize: str = "13a"  # what is a word

    @classmethod
    def of(cls, c: TextConfig, reads: int, scorer: str = "", **hashes: str) -> "Settings":
        """What `c` asks for of models that can read so many tokens at once. UserError naming the setting that
        cannot work.

        scorer  the SHA-256 of its weights, not its path
        hashes  the fields tokenizer, train and corpus; "" where the data are not prepared yet
        """
        given = {f.name: getattr(c, f.name) for f in fields(cls) if hasattr(c, f.name)}
        given |= {"tokenizer": "", "train": "", "corpus": "", **hashes, "scorer": scorer}
        block_size = c.block_size or reads
        given |= {"block_size": block_size, "prompt_tokens": c.prompt_tokens or block_size}
        s = cls(**given | {"stride": c.stride or min(512, block_size)})
        needs = s.prompt_tokens + s.new_tokens
        for key, works, why in (
            ("block_size", block_size <= reads, f"one model reads {reads} tokens: give --block_size={reads}"),
            ("words", s.words == 0 or s.words >= LEAST_WORDS, f"at least {LEAST_WORDS}"),
            ("texts", s.texts >= 2, "each is compared with the others"),
            ("new_tokens", needs <= block_size, f"{needs} tokens with the prompt; block_size = {block_size}"),
            ("stride", s.stride <= block_size, f"block_size = {block_size}"),
        ):
            if not works:
                raise UserError(f"{key} = {getattr(s, key)!r} cannot be: {why}")
        return s


def run_seed(seed: int, config: dict[str, Any]) -> int:
    """The seed of one run, derived from the table's and from the run's own training seed.

    So the texts of two seeds are independent, and rows of one training seed share their random numbers.
    """
    digest = hashlib.sha256(f"{seed} {config.get('seed')}".encode()).digest()
    return int.from_bytes(digest[:6])
