"""A machine that writes a language and knows the exact distribution of each next word.

The machine is deterministic: a text has one path through its states. So the state is a function of the words
seen, and no mixture over hidden paths has to be inferred:

    p(next word | all words so far) = p(w | q, x) = syntax[q, class of w] * lexicon[x, w]

Here q is the place in the grammar (the stack of all that is still to come), and x is the theme, which the
first word of a document chose. A state is one number, q * X + x; each document begins in state 0, for itself.
"""

import hashlib
from functools import cached_property
from typing import NamedTuple

import numpy as np

UNKNOWN = -1  # the state after a word that the grammar forbids, until the next document begins


class Tables(NamedTuple):
    """What defines a machine of V words, C classes, Q places and X themes.

    The words of a class have consecutive ids. The last word, alone in the last class, ends a document.
    """

    klass: np.ndarray  # (V,) class of each word, ascending
    syntax: np.ndarray  # (Q, C) P(class | q): rows sum to 1
    after: np.ndarray  # (Q, C) the place that follows; -1 where the class is impossible
    lexicon: np.ndarray  # (X, V) P(word | its class, x): sums to 1 over each class
    theme: np.ndarray  # (V,) the theme that a word sets, -1 where it sets none


class Machine:
    """Samples documents, parses texts, gives distributions and entropies. Arrays are float64 and int64."""

    def __init__(self, tables: Tables):
        self.tables = tables
        self.klass, self.syntax, self.after, self.lexicon, self.theme = tables
        (self.Q, self.C), (self.X, self.V) = self.syntax.shape, self.lexicon.shape
        self.end = self.V - 1  # id of the word that ends a document
        self.first = np.searchsorted(self.klass, np.arange(self.C + 1))  # (C + 1,) first word of each class

    @cached_property
    def digest(self) -> str:
        """12 hexadecimal digits of the SHA-256 of the tables, which are rounded to ten decimal places."""
        content = b"".join(np.round(table, 10).tobytes() for table in self.tables)
        return hashlib.sha256(content).hexdigest()[:12]

    def probs(self, states: np.ndarray) -> np.ndarray:
        """p(next word | state) (N, V) of states (N,), none of them UNKNOWN; 0 for forbidden words.

        Exact up to float64 rounding.
        """
        q, x = np.divmod(states, self.X)
        return self.syntax[q][:, self.klass] * self.lexicon[x]

    def allows(self, states: np.ndarray, words: np.ndarray) -> np.ndarray:
        """Whether each word (N,) is possible in its state (N,); False where the state is UNKNOWN."""
        q, x = np.divmod(states, self.X)
        return (states != UNKNOWN) & (self.syntax[q, self.klass[words]] > 0) & (self.lexicon[x, words] > 0)

    def step(self, states: np.ndarray, words: np.ndarray) -> np.ndarray:
        """The states (N,) after each word (N,): UNKNOWN after a forbidden word.

        After the end of a document it is 0, whatever came before.
        """
        q, x = np.divmod(states, self.X)
        x = np.where(self.theme[words] >= 0, self.theme[words], x)
        next_states = self.after[q, self.klass[words]] * self.X + x
        next_states = np.where(self.allows(states, words), next_states, UNKNOWN)
        return np.where(words == self.end, 0, next_states)

    def parse(self, rows: np.ndarray, start: int = 0) -> np.ndarray:
        """The state (B, L) in which each word of `rows` (B, L) is chosen.

        The first word of each row is chosen in `start`, 0 or UNKNOWN.
        """
        states, state = np.empty(rows.shape, np.int64), np.full(len(rows), start)
        for i in range(rows.shape[1]):
            states[:, i] = state
            state = self.step(state, rows[:, i])
        return states

    def parse_stream(self, ids: np.ndarray) -> np.ndarray:
        """The state (T,) in which each word of `ids` (T,), whole documents one after the other, is chosen."""
        ends = np.flatnonzero(ids == self.end)
        lengths = np.diff(ends, prepend=-1)
        inside = np.arange(lengths.max()) < lengths[:, None]  # (documents, longest)
        rows = np.full(inside.shape, self.end, np.int64)
        rows[inside] = ids
        return self.parse(rows)[inside]

    @cached_property
    def _cumulative(self) -> tuple[np.ndarray, np.ndarray]:
        """Cumulative sums of syntax (Q * C,) and of lexicon (X * V,): two ascending sequences to search in.

        That of row q of syntax runs from q to q + 1, that of class c in row x of lexicon from x * C + c on.
        """
        classes = self.syntax.cumsum(1) + np.arange(self.Q)[:, None]
        bounds = zip(self.first[:-1], self.first[1:])
        words = np.hstack([c + self.lexicon[:, a:b].cumsum(1) for c, (a, b) in enumerate(bounds)])
        words = words + np.arange(self.X)[:, None] * self.C
        return classes.ravel(), words.ravel()

    def sample(self, documents: int, rng: np.random.Generator) -> list[np.ndarray]:
        """`documents` independent documents, each an array of ids that ends with `end`."""
        # below 1, so that rounding cannot carry it to the next row
        uniform = lambda n: np.minimum(rng.random(n), 1 - 1e-9)
        classes, words = self._cumulative
        alive, states, columns = np.arange(documents), np.zeros(documents, np.int64), []
        while len(alive):  # all documents advance together, a word at a time
            q, x = np.divmod(states, self.X)
            c = np.searchsorted(classes, q + uniform(len(q)), "right") - q * self.C
            w = np.searchsorted(words, x * self.C + c + uniform(len(q)), "right") - x * self.V
            columns.append((alive, w))
            states, going = self.step(states, w), w != self.end
            alive, states = alive[going], states[going]
        owner, flat = (np.concatenate(part) for part in zip(*columns))
        order = np.argsort(owner, kind="stable")
        return np.split(flat[order], np.cumsum(np.bincount(owner))[:-1])

    @cached_property
    def visits(self) -> np.ndarray:
        """How often a document is expected to be in each state (Q * X,).

        n = e_0 + P^T n over places, shared among the themes by their probability.
        """
        flow = np.zeros((self.Q, self.Q))
        inside = np.where(self.after > 0, self.syntax, 0)  # > 0: not into the next document
        np.add.at(flow, (np.arange(self.Q)[:, None], self.after), inside)
        n = np.linalg.solve(np.eye(self.Q) - flow.T, np.eye(self.Q)[0])
        sets = self.theme >= 0
        share = np.bincount(self.theme[sets], self.lexicon[0, sets], minlength=self.X)
        visits = n[:, None] * share
        visits[0] = np.eye(self.X)[0]  # the first word has no theme yet
        return visits.ravel()
