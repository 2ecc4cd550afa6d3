"""The exact distribution of each unknown token of a text of the machine, given known tokens on both sides.

The forward-backward algorithm (Rabiner 1989, A tutorial on hidden Markov models, section III) over the states
of grammar/machine.py. With tokens x_0 .. x_{T-1} of which some are known, and s_i the state in which x_i is
chosen:

    alpha_i(s) = p(known tokens before i, s_i = s)        beta_i(s) = p(known tokens from i on | s_i = s)
    p(x_i = w, all known tokens) = sum_s alpha_i(s) p(w | s) beta_{i+1}(state after w in s)

A state is a place in the grammar and a theme, so a message is a matrix (Q, X). Most words keep the theme: an
unknown token then moves mass along the arcs place -> place, whatever the theme is, by one sparse matrix. Only
words that set a theme, and the end of a document, mix columns. A known token has one class, so it needs the
arcs of that class, weighted by one column of the lexicon.

Each message is divided by its sum. The recursions are linear, so this changes no ratio inside a message, and
nothing underflows however long the text is, but for a state that the known tokens of one side make 1e308
times less likely than the others. It matters only where the other side outweighs that.
"""

from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array

from .grammar.machine import UNKNOWN, Machine

MASKED = -1  # in place of a token that is not known


class ForwardBackward:
    """p(unknown tokens | known tokens) of a machine, for rows of tokens (B, T), MASKED where not known.

    A row is a window that was cut anywhere from the stream of documents, one after the other: its first state
    has the stationary distribution.

    Each row is on its own, so B costs time and no memory. The messages of a row take at most 8 T Q X bytes.
    """

    def __init__(self, machine: Machine):
        M = self.machine = machine
        self.theme_after = np.where(M.theme >= 0, M.theme, np.arange(M.X)[:, None])  # (X, V)
        self.theme_after[:, M.end] = 0

        classes, self.source = np.nonzero(M.syntax.T)  # the arcs (A,), by class
        self.target, weight = M.after[self.source, classes], M.syntax[self.source, classes]
        number = np.arange(len(classes))
        self.by_class = csr_array((weight, (classes, number)), (M.C, len(number)))  # weighs and sums the arcs
        to = csr_array((weight, (number, self.target)), (len(number), M.Q))
        # for each class the places that have it (n,), and P(class, place after | place) (n, Q)
        self.places = [self.source[classes == c] for c in range(M.C)]
        self.arcs = [to[classes == c] for c in range(M.C)]

        self.theme_moves: dict[int, np.ndarray] = {}  # P(theme after | before, class c) (X, X) of changing c
        for c in sorted({*M.klass[M.theme >= 0], M.klass[M.end]}):
            words, moves = slice(*M.first[c : c + 2]), np.zeros((M.X, M.X))
            np.add.at(moves, (np.arange(M.X)[:, None], self.theme_after[:, words]), M.lexicon[:, words])
            self.theme_moves[c] = moves
        keeps = ~np.isin(classes, list(self.theme_moves))  # the arcs of all classes that keep the theme
        self.keeping = csr_array((weight[keeps], (self.source[keeps], self.target[keeps])), (M.Q, M.Q))
        self.stationary = M.visits.reshape(M.Q, M.X) / M.visits.sum()

    def log_probs(self, tokens: np.ndarray, at: np.ndarray | None = None) -> np.ndarray:
        """log p(x_i = w | all known tokens of the row) (n, V), float64, -inf for impossible words.

        `at` (B, T), bool, says which unknown tokens are asked for; None: all of them. The n answers stand in
        the order of `tokens[at]`. ValueError where the known tokens of a row are impossible together.
        """
        tokens = np.asarray(tokens)
        wanted = tokens == MASKED if at is None else np.asarray(at)
        p, n = np.empty((wanted.sum(), self.machine.V)), 0
        for b, row in enumerate(tokens):
            positions, alpha = np.flatnonzero(wanted[b]).tolist(), self.stationary
            betas = self._betas(b, row, {i + 1 for i in positions})
            for i in range(max(positions, default=-1) + 1):  # alpha is alpha_i, over its sum
                if wanted[b, i]:
                    p[n] = self._words(alpha, betas[i + 1])
                    n += 1
                alpha = over_its_sum(self._right(alpha, row[i]))
        total = p.sum(1, keepdims=True)
        if (total == 0).any():
            b = np.argwhere(wanted)[total.argmin(), 0]
            raise ValueError(f"row {b}: float64 cannot hold how unlikely its known tokens are together")
        p /= total
        with np.errstate(divide="ignore"):
            return np.log(p, out=p)

    # ---- messages --------------------------------------------------------------------------------

    def _betas(self, b: int, row: np.ndarray, wanted: set[int]) -> dict[int, np.ndarray]:
        """beta_i, each over its sum, of row b for the i in `wanted`. ValueError where no text fits it."""
        beta, kept = np.ones((self.machine.Q, self.machine.X)), {}
        for i in range(len(row), -1, -1):
            if i < len(row):
                beta = over_its_sum(self._left(beta, row[i]))
            if i in wanted:
                kept[i] = beta
        if not (self.stationary * beta).any():
            raise ValueError(f"row {b}: the grammar has no text with these known tokens")
        return kept

    def _right(self, alpha: np.ndarray, word: int) -> np.ndarray:
        """alpha_{i+1}, from alpha_i and x_i."""
        M = self.machine
        if word == MASKED:
            out = self.keeping.T @ alpha
            for c, moves in self.theme_moves.items():
                out += self.arcs[c].T @ (alpha[self.places[c]] @ moves)
            return out
        c = M.klass[word]
        mass = alpha[self.places[c]] * M.lexicon[:, word]
        if c in self.theme_moves:
            mass = mass @ np.eye(M.X)[self.theme_after[:, word]]
        return self.arcs[c].T @ mass

    def _left(self, beta: np.ndarray, word: int) -> np.ndarray:
        """beta_i, from beta_{i+1} and x_i."""
        M = self.machine
        if word == MASKED:
            out = self.keeping @ beta
            for c, moves in self.theme_moves.items():
                out[self.places[c]] += self.arcs[c] @ beta @ moves.T
            return out
        c, out = M.klass[word], np.zeros_like(beta)
        out[self.places[c]] = (self.arcs[c] @ beta)[:, self.theme_after[:, word]] * M.lexicon[:, word]
        return out

    def _words(self, alpha: np.ndarray, beta: np.ndarray) -> np.ndarray:
        """sum_s alpha(s) p(w | s) beta(state after w in s) (V,)."""
        M, out = self.machine, np.empty(self.machine.V)
        through = self.by_class @ (alpha[self.source] * beta[self.target])  # (C, X) where the theme stays
        for c in range(M.C):
            words = slice(*M.first[c : c + 2])
            if c in self.theme_moves:
                pairs = alpha[self.places[c]].T @ (self.arcs[c] @ beta)  # (X before, X after)
                weights = np.take_along_axis(pairs, self.theme_after[:, words], 1)
                out[words] = (weights * M.lexicon[:, words]).sum(0)
            else:
                out[words] = through[c] @ M.lexicon[:, words]
        return out


def over_its_sum(message: np.ndarray) -> np.ndarray:
    """The message over its sum; as it is where all of it is 0."""
    total = message.sum()
    return message / total if total else message


class CutDocuments(NamedTuple):
    """An labs.sequences.two_sided.TwoSided: windows cut anywhere from documents one after the other.

    A word is judged up to the first forbidden one of its document, if the start of that is in the window.
    `pair_tv` is the total variation between how often two classes of words are neighbours in the texts and
    how often they are in the language: valid texts that are all alike are far from it, too. What the truth
    writes is at the noise of so many words, not at 0.
    """

    machine: Machine

    def log_probs(self, text: np.ndarray, asked: np.ndarray) -> np.ndarray:
        return ForwardBackward(self.machine).log_probs(text, asked)

    @property
    def end(self) -> int:
        """The word that ends a document."""
        return self.machine.end

    def after(self, ids: np.ndarray) -> np.ndarray | None:
        """p(next word | ids) (V,) where `ids` (T,) begin a document; None where the grammar forbids one."""
        state = self.machine.parse(np.append(ids, self.machine.end)[None])[0, -1]
        return None if state == UNKNOWN else self.machine.probs(np.array([state]))[0]

    def judge(self, texts: np.ndarray) -> dict[str, float]:
        M, klass = self.machine, self.machine.klass[texts]
        states = M.parse(texts, UNKNOWN)
        judged = states != UNKNOWN
        states, words = states[judged], texts[judged]
        allowed = M.allows(states, words)
        p = M.probs(states[allowed])[np.arange(allowed.sum()), words[allowed]]
        pairs = np.bincount((klass[:, :-1] * M.C + klass[:, 1:]).ravel(), minlength=M.C**2)
        pair_tv = np.abs(pairs / max(1, pairs.sum()) - pair_shares(M).ravel()).sum() / 2
        mean = lambda values: float(values.mean()) if len(values) else float("nan")
        numbers = {"true_nll": mean(-np.log(p)), "judged": len(allowed), "pair_tv": float(pair_tv)}
        return {"validity": mean(allowed), **numbers}


def pair_shares(machine: Machine) -> np.ndarray:
    """How often a word of one class is followed by one of another, (C, C), in the stream of documents."""
    places = machine.visits.reshape(machine.Q, machine.X).sum(1)
    first = machine.syntax * (places / places.sum())[:, None]  # (Q, C): at a place, this class
    follows = np.where(machine.after >= 0, 1, 0)[:, :, None] * machine.syntax[machine.after]
    return np.einsum("qc,qcd->cd", first, follows)
