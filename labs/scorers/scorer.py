"""Texts under a language model that is named: generative perplexity, and MAUVE by its hidden states.

The scorer is a run, such as any causal language model of transformers becomes (labs/transformers). It reads
text with a tokenizer of its own, so any system's texts can be scored. It sees a text as the table measures
it: cut to its first words, and a token of it as what its own tokenizer makes of that.
"""

import sys
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from common.device import autocast, get_dtype, to_float64
from common.errors import UserError
from common.log import progress_bar
from data.open import tokenizer_of
from data.tokenizers import ids_of
from data.tokens import open_tokens
from evaluate import metrics
from evaluate.diversity import SPACED, cut
from evaluate.sampling import WEIGHT_DRAWS, held_out_prompts
from evaluate.scoring import windows
from evaluate.settings import TextConfig
from evaluate.text_numbers import Data, decode
from tables.statistics import half_sampling_interval
from training.checkpoint import find_checkpoint, weights_digest
from training.run import find_run, load_model

KMEANS = 5  # clusterings that MAUVE is the mean of
MAUVE = "mauve-text"  # the package, which is optional


# -----------------------------------------------------------------------------
# Scorers


class Scorer:
    """A causal language model with its tokenizer. `dtype`: of matrix products."""

    def __init__(self, path: str, device: torch.device, dtype: str = "float32"):
        self.model, ckpt = load_model(find_run(path), device=device, dtype=get_dtype(dtype))
        if not self.model.trunk.forwards:
            raise UserError(f"the scorer {path} does not read from left to right")
        self.name, self.device, self.dtype = ckpt.config.name, device, dtype
        self.context, tokenizer = self.model.trunk.context, tokenizer_of(ckpt)  # tokens that it reads at most
        self.encode = partial(ids_of, tokenizer=tokenizer)
        self.draws = self.model.head.draws(WEIGHT_DRAWS, 0, get_dtype(dtype))

    def hidden(self, ids: Tensor) -> Tensor:
        """(T,) -> (T, C), the last layer's, normalised."""
        with autocast(self.device, self.dtype):
            return self.model.trunk(ids[None].to(self.device))[0]

    def log_p(self, ids: Tensor) -> Tensor:
        """(T + 1,) -> (T,), of each token but the first."""
        return self.model.head.log_p_of(self.hidden(ids[:-1]), self.draws, ids[1:])


def digest(path: str) -> str:
    """SHA-256 of a scorer's weights."""
    return weights_digest(find_checkpoint(find_run(path)))


# -----------------------------------------------------------------------------
# What they say of texts


@torch.no_grad()
def continuation_nll(scorer: Scorer, prompt: str, text: str) -> tuple[float, int]:
    """(sum of -log p in nats, count) of the tokens of `text` after `prompt`.

    Both are encoded by themselves. If they do not fit the scorer's context, windows advance by half of it.
    """
    before, after = scorer.encode(prompt), scorer.encode(text)
    assert before  # else the first token of the text would be given nothing
    ids, nll = torch.tensor(before + after), 0.0
    for start, first in windows(len(ids), scorer.context, max(1, scorer.context // 2)) if after else ():
        log_p = scorer.log_p(ids[start : start + scorer.context + 1])
        nll -= to_float64(log_p[max(first, len(before) - 1 - start) :]).sum().item()
    return nll, len(after)


def generative_perplexity(nll: list[tuple[float, int]]) -> float:
    """exp(mean of -log p over all tokens) of `continuation_nll` of texts."""
    return metrics.perplexity(sum(n for n, _ in nll), sum(count for _, count in nll))


@torch.no_grad()
def features(scorer: Scorer, texts: list[str]) -> np.ndarray:
    """(n, C) float32: the hidden state at the last token of each text, which stands alone, without prompt.

    If a text is longer than the scorer's context, its first tokens count, as in mauve-text.
    """
    rows = []
    for i, text in enumerate(texts):
        ids = scorer.encode(text)[: scorer.context]
        if not ids:
            raise ValueError(f"text {i} is empty: it has no last token")
        rows.append(scorer.hidden(torch.tensor(ids))[-1].float().cpu().numpy())
    return np.stack(rows)


def mauve(human: np.ndarray, texts: np.ndarray) -> float:
    """MAUVE of features (n, C): 1 where both are distributed alike, towards 0 where they are not.

    With the settings of mauve-text: n / 10 clusters, scaling factor 5; the mean over KMEANS seeds of its
    clustering, which alone moves it as much as a sampler does (krishnap25/mauve#11).
    Source: Pillutla et al. 2021, arXiv 2102.01454.
    """
    from mauve import compute_mauve  # optional

    return fmean(
        float(compute_mauve(p_features=human, q_features=texts, seed=s).mauve) for s in range(KMEANS)
    )


def mauve_version() -> str:
    """Version of the package; "" where it is not installed."""
    try:
        return version(MAUVE)
    except PackageNotFoundError:
        return ""


def other_texts(data: Data, c: TextConfig) -> list[str]:
    """As many human texts to compare with, cut to the same number of words.

    They are from the other held-out split, so that no document is on both sides.
    """
    other = open_tokens(data.split.path.with_name("validation.bin" if c.split == "test" else "test.bin"))
    human = held_out_prompts(other.ids, c.texts, c.prompt_tokens, c.new_tokens).human
    return [cut(data.tokenizer.decode(r), c.words, c.tokenize) for r in human.tolist()]


def judge(path: str, data: Data, c: TextConfig, device: torch.device) -> "Judge":
    """What the text measure asks for with --scorer=PATH. UserError for a scorer that cannot read the texts of
    the corpus, before any text is drawn."""
    scorer = Scorer(path, device, c.dtype)
    for text in (*data.prompt_texts, *decode(data.tokenizer, data.prompts.human)):
        scorer.encode(text)
    made = Judge(scorer, digest(path), c.words, partial(other_texts, data, c), c.tokenize)
    if made.human is None:
        print(f"MAUVE is left out: pip install {MAUVE}, and run this again", file=sys.stderr)
    return made


class Judge:
    """The columns of columns.py: what its scorer says of the texts of each row.

    sha256  of the scorer's weights
    words   that each text is cut to, as `tokenize` finds them
    others  human texts that MAUVE compares with; asked for where the package is installed
    """

    def __init__(
        self, scorer: Scorer, sha256: str, words: int, others: Callable[[], list[str]], tokenize: str = SPACED
    ):
        self.scorer, self.cut = scorer, partial(cut, words=words, tokenize=tokenize)
        self.origin: dict[str, Any] = {"name": scorer.name, "sha256": sha256}
        self.human: np.ndarray | None = None
        if used := mauve_version():
            self.origin |= {"mauve_text": used, "mauve_clusterings": KMEANS}
            self.human = features(scorer, list(map(self.cut, others())))

    def numbers(self, texts: list[str], prompts: list[str], halves: int = 0) -> dict[str, Any]:
        """The columns of a row with these texts, and where they come from.

        `halves`: of a reference's texts, how many random ones its interval is made of; 0: it has none. MAUVE
        has no such interval: with fewer texts it is another number.
        """
        texts = list(map(self.cut, texts))
        out: dict[str, Any] = {"scorer": self.origin}
        pairs = progress_bar(list(zip(prompts, texts)), desc=f"under {self.scorer.name}", leave=False)
        nll = [continuation_nll(self.scorer, *pair) for pair in pairs]
        out |= {"gen_ppl": generative_perplexity(nll), "gen_tokens": sum(count for _, count in nll)}
        if halves:
            out["gen_ppl_ci"] = half_sampling_interval(nll, generative_perplexity, halves)
        if self.human is not None:
            out["mauve"] = mauve(self.human, features(self.scorer, texts))
        return out

    def lacks(self, row: dict[str, Any]) -> bool:
        """Whether a row of an earlier table was made where the package for MAUVE was not installed."""
        return self.human is not None and not {"mauve", "problem"} & row.keys()

    @property
    def note(self) -> str:
        """The line about the columns under a table."""
        name, digest = self.origin["name"], self.origin["sha256"]
        return (
            f"Gen. PPL and MAUVE are by the scorer {name} (weights {digest[:12]}). Low generative perplexity "
            "is not quality: a text that repeats itself has it, too, so read it beside the human row. "
            "MAUVE takes about a thousand texts; it means something where noise and loop "
            "have less than human text. Neither shows that a sampler is right (arXiv 2602.19619)."
        )
