"""What the samplers of the decoding measure write: texts of a model at a temperature and a cut, against the
language whose truth is known."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from data.held_out import HeldOut
from evaluation.decoding import Decoding
from evaluation.diversity import self_bleu_sacre
from evaluation.sampling import generate
from evaluation.truncation import truncate
from evaluation.two_sided import TwoSided
from heads import Weights
from model import LanguageModel
from runtime.device import float64_device
from runtime.errors import UserError

NGRAM = 4  # BrierLM's longest n-gram

# what is known of the texts: (key, title, what it is)
TEXT_NUMBERS = (
    ("brier_lm", "BrierLM", "100 times the geometric mean of Brier-n, n = 1 to 4 tokens; higher is better"),
    ("validity", "validity", "share of allowed words, from the first start of a document in a text on"),
    ("pair_tv", "pair TV", "total variation of pairs of word classes from the language's"),
    ("self_bleu", "Self-BLEU", "of the texts; the truth's is what it should be"),
)


class TextSizes(NamedTuple):
    contexts: int  # whose next tokens BrierLM is about
    texts: int
    block_size: int


class Contexts(NamedTuple):
    """Where texts go on from. The start of a document stands in each, so that a model can know its state."""

    positions: np.ndarray  # (N,) of the split, of the first token that is written
    tokens: np.ndarray  # (N, P) what stands before them
    human: np.ndarray  # (N, L) what stands from there on in the split

    @classmethod
    def spread(cls, data: HeldOut, count: int, before: int, after: int) -> "Contexts":
        """`count` of them, evenly spread over the split, less those without the start of a document."""
        assert data.truth is not None
        starts = np.linspace(0, len(data.ids) - before - after, count).astype(int)
        rows = np.stack([data.ids[i : i + before + after] for i in starts]).astype(np.int64)
        known = (rows[:, :before] == data.truth.end).any(1)
        starts, rows = starts[known] + before, rows[known]
        return cls(starts, rows[:, :before], rows[:, before:])


def brier_lm(q: np.ndarray, p: np.ndarray) -> float:
    """BrierLM (Shao et al. 2025, arXiv 2510.27688): 100 times the geometric mean of Brier-n, n = 1 to L.

    Brier-n is P(x = y) + P(x' = y) - P(x = x') of n-grams x and x' of the sampler and y of the truth, all
    after one context. The Brier score is 1 less it, so the truth has the highest one. The paper counts how
    often they are equal. Here the laws are known, and Brier-n is the mean over x of 2 p(x) - q(x). `q` and
    `p` (N, L): the probabilities of each token of sampled x (N, L) in the sampler and in the truth, given the
    tokens before it. 0 where a Brier-n is not positive.
    """
    brier = (2 * p.cumprod(1) - q.cumprod(1)).mean(0)
    return float(100 * np.exp(np.log(brier).mean())) if (brier > 0).all() else 0.0


class Sampler(NamedTuple):
    """Writes from a model at a temperature and a cut."""

    model: LanguageModel
    draws: list[Weights]
    decoding: Decoding
    seed: int
    device: torch.device
    dtype: str

    def write(self, contexts: np.ndarray, length: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Token by token what it writes after contexts (N, P): (N,), and the hidden states (N, C) before it.
        All samplers draw with the same random numbers."""
        generator = torch.Generator(float64_device(self.device)).manual_seed(self.seed)
        start = torch.from_numpy(contexts).to(self.device)
        return generate(self.model, start, length, self.draws, self.decoding, generator, dtype=self.dtype)

    def probs(self, hidden: Tensor, token: Tensor) -> Tensor:
        """What tokens (N,) have in the distribution that they were drawn from (N,)."""
        q = truncate(self.model.head.log_probs(hidden, self.draws), self.decoding)
        return q.gather(1, token[:, None])[:, 0]


class LanguageJudge:
    """What texts of a split's language are worth."""

    def __init__(
        self, data: HeldOut, language: TwoSided, decode: Callable[[list[int]], str], sizes: TextSizes
    ):
        assert data.truth is not None
        self.truth, self.language, self.decode = data.truth, language, decode
        self.near = Contexts.spread(data, sizes.contexts, sizes.block_size // 2, NGRAM)
        self.far = Contexts.spread(data, sizes.texts, sizes.block_size // 2, sizes.block_size // 2)
        if len(self.far.tokens) < 2:
            raise UserError(f"texts = {sizes.texts}: less than two of them begin in a document; ask for more")

    @torch.no_grad()
    def numbers(self, sampler: Sampler) -> dict[str, float]:
        """TEXT_NUMBERS of a sampler: BrierLM of what it writes after the contexts `near`, the others of its
        texts after `far`."""
        steps = list(sampler.write(self.near.tokens, NGRAM))
        q = torch.stack([sampler.probs(hidden, token) for token, hidden in steps], 1)
        ngrams = torch.stack([token for token, _ in steps], 1)
        texts = torch.stack(
            [token for token, _ in sampler.write(self.far.tokens, self.far.human.shape[1])], 1
        )
        return self._numbers(*(x.cpu().numpy() for x in (ngrams, q, texts)))

    def human(self) -> dict[str, float]:
        """Those of the split itself, which the truth wrote: the best there is, but for the noise of so few
        texts."""
        p = self.truth.chances(self.near.positions, self.near.human)
        return self._numbers(self.near.human, p, self.far.human)

    def _numbers(self, ngrams: np.ndarray, q: np.ndarray, texts: np.ndarray) -> dict[str, float]:
        judgement = self.language.judge(texts)
        values = {
            "brier_lm": brier_lm(q.astype(np.float64), self.truth.chances(self.near.positions, ngrams)),
            **{key: judgement[key] for key in ("validity", "pair_tv")},
            "self_bleu": self_bleu_sacre([self.decode(row) for row in texts.tolist()]),
        }
        return {key: float(f"{value:.5g}") for key, value in values.items()}
