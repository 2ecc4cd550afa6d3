"""The exact truths given any known places, of the corpora that have one: `Corpus.truth` in a prepare.py."""

from typing import Protocol

import numpy as np

from data.open import corpus_of
from data.tokens import TokenFile


class TwoSided(Protocol):
    """The truth of windows (n, T)."""

    def log_probs(self, text: np.ndarray, asked: np.ndarray) -> np.ndarray:
        """log p (m, V) of the tokens at the m places `asked` (n, T), given what is known of each `text`
        (n, T), -1 where it is not."""
        ...

    def judge(self, texts: np.ndarray) -> dict[str, float]:
        """What sampled texts (n, T) are worth: `validity`, the share of what is possible, and `true_nll`, the
        mean -log p of that under the truth, nats a token, or, of sequences that begin with what is given,
        nats of the rest of a sequence. What the truth writes has its entropy. A lab may have words of its
        own: `solved` of mazes, `pair_tv` of the known language."""
        ...


def is_known(dataset: str, source: str, length: int) -> bool:
    """Whether anybody knows the truth of windows of a corpus, by its settings."""
    return corpus_of(dataset).truth(source, length) is not None


def two_sided(data: TokenFile, dataset: str, length: int) -> TwoSided | None:
    """The truth of windows of a split; None where nobody knows it."""
    return corpus_of(dataset).truth(str(data.info.get("source", "")), length)
