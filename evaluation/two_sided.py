"""The exact truths given any known places, of the corpora that have one: the known language, the synthetic
sequences, the mazes and the simulated climbs."""

from typing import NamedTuple, Protocol

import numpy as np

from data.climbs.prepare import GIVEN, climbs_of
from data.grammar.machine import UNKNOWN, Machine
from data.grammar.truth import Truth
from data.grammar.two_sided import ForwardBackward
from data.held_out import HeldOut
from data.mazes.mazes import Mazes
from data.mazes.prepare import mazes_of
from data.synthetic.prepare import task_of
from data.synthetic.tasks import Chain, Task
from evaluation.any_order import FREE

AT_ONCE = 64  # sequences: a chain keeps T x states numbers of each


class TwoSided(Protocol):
    """Of windows (n, T)."""

    def log_probs(self, text: np.ndarray, asked: np.ndarray) -> np.ndarray:
        """log p (m, V) of the tokens at the m places `asked` (n, T), given what is known of each `text`
        (n, T), -1 where it is not."""
        ...

    def judge(self, texts: np.ndarray) -> dict[str, float]:
        """What sampled texts (n, T) are worth: `validity`, the share of what is possible, and `true_nll`, the
        mean -log p of that under the truth, nats a token, or, of sequences that begin with what is given,
        nats of the rest of a sequence. What the truth writes has its entropy. Where there are pairs of
        neighbours to count, `pair_tv`: see Language. Of mazes what Answers says."""
        ...


class Language(NamedTuple):
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
        found = {"validity": _mean(allowed), "true_nll": _mean(-np.log(p)), "judged": len(allowed)}
        return found | {"pair_tv": self._pair_tv(texts)}

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


class Sequences(NamedTuple):
    """Whole sequences of a task, judged one by one. The first `given` tokens of each are given (Chain)."""

    task: Task
    given: int = 0

    def nats(self, texts: np.ndarray) -> np.ndarray:
        """-log p (n,) of sequences (n, T) given their first `given` tokens; inf for an impossible one."""
        parts = np.split(texts, range(AT_ONCE, len(texts), AT_ONCE))
        return np.concatenate([self._begun(part) - self.task.log_prob(part) for part in parts])

    def _begun(self, texts: np.ndarray) -> np.ndarray | float:
        """log p (n,) of what is given."""
        if not self.given:
            return 0.0
        assert isinstance(self.task, Chain)
        return self.task.log_evidence(np.where(np.arange(self.task.T) < self.given, texts, FREE))

    def log_probs(self, text: np.ndarray, asked: np.ndarray) -> np.ndarray:
        return self.task.log_probs(text)[asked]

    def judge(self, texts: np.ndarray) -> dict[str, float]:
        nats = self.nats(texts)
        valid = np.isfinite(nats)
        return {
            "validity": _mean(valid),
            "true_nll": _mean(nats[valid]) / (1 if self.given else self.task.T),
            "judged": len(texts),
        }


class Answers(NamedTuple):
    """Mazes with their answers: `solved`, the share with a path from start to goal, `optimal`, the share with
    a shortest one, and `true_nll`, the mean -log p of these under the truth, nats an answer."""

    mazes: Mazes

    def nats(self, texts: np.ndarray) -> np.ndarray:
        """-log p (n,) of the answers; inf for one that is no shortest path."""
        return -self.mazes.log_prob(texts)

    def log_probs(self, text: np.ndarray, asked: np.ndarray) -> np.ndarray:
        return self.mazes.log_probs(text)[asked]

    def judge(self, texts: np.ndarray) -> dict[str, float]:
        solved, optimal = self.mazes.solved(texts)
        return {
            "solved": _mean(solved),
            "optimal": _mean(optimal),
            "true_nll": _mean(self.nats(texts[optimal])),
            "judged": len(texts),
        }


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")


def is_known(dataset: str, source: str, length: int) -> bool:
    """Whether anybody knows the truth of windows of a corpus, by its settings."""
    return dataset == "grammar" or drawn(dataset, source, length) is not None


def drawn(dataset: str, source: str, length: int) -> TwoSided | None:
    """The truth of sequences of `length` tokens that a program draws; None where nobody knows it."""
    if dataset == "synthetic":
        task = task_of(source)
        return Sequences(task) if task.T == length else None
    if dataset == "climbs":
        climbs = climbs_of(source)
        return Sequences(climbs, GIVEN) if climbs and climbs.T == length else None
    if dataset == "mazes":
        mazes = mazes_of(source)
        return Answers(mazes) if mazes.T == length else None
    return None


def two_sided(data: HeldOut, dataset: str, length: int) -> TwoSided | None:
    """The truth of windows of a split; None where nobody knows it."""
    if isinstance(data.truth, Truth):
        return Language(data.truth.machine)
    return drawn(dataset, str(data.info.get("source", "")), length)
