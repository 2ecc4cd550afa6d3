"""The exact truths given any known places, of the corpora that have one.

The known language has it in its split's file. Another corpus says it itself: the function
`truth(source, length)` of its prepare.py.
"""

from typing import NamedTuple, Protocol

import numpy as np

from data.grammar.machine import UNKNOWN, Machine
from data.grammar.truth import GrammarTruth
from data.grammar.two_sided import ForwardBackward
from data.held_out import HeldOut
from data.prepared import corpus_of
from labs.sequences.exact import mean


class TwoSided(Protocol):
    """The truth of windows (n, T)."""

    def log_probs(self, text: np.ndarray, asked: np.ndarray) -> np.ndarray:
        """log p (m, V) of the tokens at the m places `asked` (n, T), given what is known of each `text`
        (n, T), -1 where it is not."""
        ...

    def judge(self, texts: np.ndarray) -> dict[str, float]:
        """What sampled texts (n, T) are worth: `validity`, the share of what is possible, and `true_nll`, the
        mean -log p of that under the truth, nats a token, or, of sequences that begin with what is given,
        nats of the rest of a sequence. What the truth writes has its entropy. Where there are pairs of
        neighbours to count, `pair_tv` (CutDocuments). A lab may have words of its own: `solved` of mazes."""
        ...


class CutDocuments(NamedTuple):
    """Windows cut anywhere from documents one after the other. A word is judged up to the first forbidden one
    of its document, if the start of that is in the window.

    `pair_tv` is the total variation between how often two classes of words are neighbours in the texts and
    how often they are in the language: valid texts that are all alike are far from it, too. What the truth
    writes is at the noise of so many words, not at 0.
    """

    machine: Machine

    def log_probs(self, text: np.ndarray, asked: np.ndarray) -> np.ndarray:
        return ForwardBackward(self.machine).log_probs(text, asked)

    def judge(self, texts: np.ndarray) -> dict[str, float]:
        states = self.machine.parse(texts, UNKNOWN)
        judged = states != UNKNOWN
        states, words = states[judged], texts[judged]
        allowed = self.machine.allows(states, words)
        p = self.machine.probs(states[allowed])[np.arange(allowed.sum()), words[allowed]]
        judgement = {"validity": mean(allowed), "true_nll": mean(-np.log(p)), "judged": len(allowed)}
        return judgement | {"pair_tv": self._pair_tv(texts)}

    def _pair_tv(self, texts: np.ndarray) -> float:
        M = self.machine
        klass = M.klass[texts]
        pairs = klass[:, :-1] * M.C + klass[:, 1:]
        seen = np.bincount(pairs.ravel(), minlength=M.C**2) / max(1, pairs.size)
        return float(np.abs(seen - pair_shares(M).ravel()).sum() / 2)


def pair_shares(machine: Machine) -> np.ndarray:
    """How often a word of one class is followed by one of another, (C, C), in the stream of documents."""
    places = machine.visits.reshape(machine.Q, machine.X).sum(1)
    first = machine.syntax * (places / places.sum())[:, None]  # (Q, C): at a place, this class
    return np.einsum(
        "qc,qcd->cd", first, np.where(machine.after >= 0, 1, 0)[:, :, None] * machine.syntax[machine.after]
    )


def is_known(dataset: str, source: str, length: int) -> bool:
    """Whether anybody knows the truth of windows of a corpus, by its settings."""
    return dataset == "grammar" or corpus_of(dataset).truth(source, length) is not None


def two_sided(data: HeldOut, dataset: str, length: int) -> TwoSided | None:
    """The truth of windows of a split; None where nobody knows it."""
    if isinstance(data.truth, GrammarTruth):
        return CutDocuments(data.truth.machine)
    return corpus_of(dataset).truth(str(data.info.get("source", "")), length)
