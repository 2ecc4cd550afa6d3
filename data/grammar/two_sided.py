"""The exact distribution of each unknown token of a text of the machine, given known tokens on both sides.

The forward-backward algorithm (Rabiner 1989, A tutorial on hidden Markov models, section III) over the states
of data.grammar.machine. With tokens x_0 .. x_{T-1} of which some are known, and s_i the state in which x_i is
chosen:

    alpha_i(s) = p(known tokens before i, s_i = s)        beta_i(s) = p(known tokens from i on | s_i = s)
    p(x_i = w, all known tokens) = sum_s alpha_i(s) p(w | s) beta_{i+1}(state after w in s)

A state is a place in the grammar and a theme, so a message is a matrix (Q, X). Most words keep the theme: an
unknown token then moves mass along the arcs place -> place, whatever the theme is, by one sparse matrix. Only
words that set a theme, and the end of a document, mix columns. A known token has one class, so it needs the
arcs of that class, weighted by one column of the lexicon.

Each message is divided by its sum, and the logarithms of the sums are added up apart. The recursions are
linear, so this changes no ratio inside a message. It is log space with one exponent for a whole message, and
nothing underflows however long the text is. Log space with an exponent for each state would keep one thing
more: a state that the known tokens of one side make 1e308 times less likely than the others. It matters only
where the other side outweighs that.
"""

from collections import deque
from collections.abc import Iterator

import numpy as np
from scipy.sparse import csr_array

from .machine import Machine

MASKED = -1  # in place of a token that is not known
DRAWS = 256  # texts that are drawn together: (DRAWS, V) numbers at a time


class ForwardBackward:
    """p(unknown tokens | known tokens) of a machine, for rows of tokens (B, T), MASKED where not known.

    What a row is, for all methods:
    - `start` is None: a window that was cut anywhere from the stream of documents, one after the other. Its
      first state has the stationary distribution.
    - `start` is a state: the first token is chosen in it. 0 is the beginning of a document.
    - `whole`: the row is one document of exactly T tokens, from state 0: the last token ends it, and no other
      does. The length counts as known, beside the tokens.

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

        changing = {*M.klass[M.theme >= 0], M.klass[M.end]}
        self.theme_moves = {c: self._theme_moves(c) for c in sorted(changing)}
        keeps = ~np.isin(classes, list(changing))  # the arcs of all classes that keep the theme
        self.keeping = csr_array((weight[keeps], (self.source[keeps], self.target[keeps])), (M.Q, M.Q))
        self.stationary = M.visits.reshape(M.Q, M.X) / M.visits.sum()

    def log_probs(
        self, tokens: np.ndarray, at: np.ndarray | None = None, start: int | None = None, whole: bool = False
    ) -> np.ndarray:
        """log p(x_i = w | all known tokens of the row) (n, V), float64, -inf for impossible words.

        `at` (B, T), bool, says which unknown tokens are asked for; None: all of them. The n answers stand in
        the order of `tokens[at]`. ValueError where the known tokens of a row are impossible together.
        """
        tokens, first = self._prepared(tokens, start, whole)
        asked = tokens == MASKED if at is None else np.asarray(at)
        if asked.shape != tokens.shape or asked.dtype != bool:
            raise ValueError(
                f"at must be bool of shape {tokens.shape}, not {asked.dtype} of shape {asked.shape}"
            )
        if (tokens[asked] != MASKED).any():
            raise ValueError(f"at asks for a known token: ask only where the token is {MASKED}")
        p, n = np.empty((asked.sum(), self.machine.V)), 0
        for b, row in enumerate(tokens):
            positions = np.flatnonzero(asked[b]).tolist()
            betas = self._betas(b, row, first, whole, {i + 1 for i in positions})
            until = max(positions, default=-1) + 1
            for i, alpha in zip(range(until), self._forward(row, first, whole)):
                if asked[b, i]:
                    p[n] = self._words(alpha, betas[i + 1])
                    n += 1
        total = p.sum(1, keepdims=True)
        if (total == 0).any():
            b = np.argwhere(asked)[total.argmin(), 0]
            raise ValueError(
                f"row {b}: float64 cannot hold how unlikely its known tokens are together: mask some of them"
            )
        p /= total
        with np.errstate(divide="ignore"):
            return np.log(p, out=p)

    def log_evidence(self, tokens: np.ndarray, start: int | None = None, whole: bool = False) -> np.ndarray:
        """log p(known tokens) (B,) in nats; -inf where they are impossible together.

        With `whole` it is log p(known tokens, and that the document has T tokens).
        """
        tokens, first = self._prepared(tokens, start, whole)
        out = np.empty(len(tokens))
        with np.errstate(divide="ignore"):
            for b, row in enumerate(tokens):
                [(beta, log_scale)] = deque(self._backward(row, whole), maxlen=1)
                out[b] = np.log((first * beta).sum()) + log_scale
        return out

    def sample(
        self, tokens: np.ndarray, rng: np.random.Generator, start: int | None = None, whole: bool = False
    ) -> np.ndarray:
        """`tokens` (B, T) with each row's unknown tokens drawn together from p(unknown | known).

        Equal rows get independent draws, and share their messages. ValueError as in `log_probs`.
        """
        tokens, first = self._prepared(tokens, start, whole)
        out = np.empty_like(tokens)
        rows, example, which = np.unique(tokens, axis=0, return_index=True, return_inverse=True)
        for k, row in enumerate(rows):
            betas = self._betas(example[k], row, first, whole, set(range(len(row) + 1)))
            same = np.flatnonzero(which.ravel() == k)
            for i in range(0, len(same), DRAWS):
                some = same[i : i + DRAWS]
                out[some] = self._draws(row, first, betas, len(some), rng)
        return out

    def _prepared(self, tokens: np.ndarray, start: int | None, whole: bool) -> tuple[np.ndarray, np.ndarray]:
        """The tokens as int64, and alpha_0 (Q, X). ValueError for what is not a row, a token or a state."""
        M, tokens = self.machine, np.asarray(tokens)
        if tokens.ndim != 2 or tokens.dtype.kind not in "iu":
            raise ValueError(f"tokens must be integers (B, T), not {tokens.dtype} of shape {tokens.shape}")
        wrong = np.argwhere((tokens < MASKED) | (tokens >= M.V))
        if len(wrong):
            b, i = wrong[0]
            raise ValueError(
                f"row {b}: token {i} is {tokens[b, i]}: use 0 to {M.V - 1}, or {MASKED} for an unknown token"
            )
        if start is not None and not 0 <= start < M.Q * M.X:
            raise ValueError(f"start = {start} is not a state: use 0 to {M.Q * M.X - 1}, or None")
        if whole and start:
            raise ValueError(f"start = {start}, but a whole document starts in state 0: leave start out")
        first = self.stationary
        if whole or start is not None:
            first = np.zeros((M.Q, M.X))
            first.flat[start or 0] = 1
        return tokens.astype(np.int64), first

    def _draws(
        self,
        row: np.ndarray,
        first: np.ndarray,
        betas: dict[int, np.ndarray],
        count: int,
        rng: np.random.Generator,
    ) -> np.ndarray:
        """`count` draws (count, T) of one row, from left to right: p(s_0 | known), then
        p(x_i = w | s_i, known) ~ p(w | s_i) beta_{i+1}(state after w)."""
        M, out = self.machine, np.tile(row, (count, 1))
        states = _draw((first * betas[0]).reshape(1, -1), rng.random(count))
        for i, word in enumerate(row):
            if word == MASKED:
                q, x = np.divmod(states, M.X)
                onward = betas[i + 1][M.after[q][:, M.klass], self.theme_after[x]]  # (count, V)
                out[:, i] = _draw(M.probs(states) * onward, rng.random(count))
            states = M.step(states, out[:, i])
        return out

    # ---- messages --------------------------------------------------------------------------------

    def _theme_moves(self, c: int) -> np.ndarray:
        """P(theme after | theme before, class c) (X, X)."""
        M, words = self.machine, slice(*self.machine.first[c : c + 2])
        moves, before = np.zeros((M.X, M.X)), np.arange(M.X)[:, None]
        np.add.at(moves, (before, self.theme_after[:, words]), M.lexicon[:, words])
        return moves

    def _forward(self, row: np.ndarray, first: np.ndarray, whole: bool) -> Iterator[np.ndarray]:
        """alpha_0, alpha_1, .. alpha_{T-1}, each (Q, X), from alpha_1 on divided by its sum."""
        alpha = first
        for word in row:
            yield alpha
            alpha = self._right(alpha, word)
            if whole:
                alpha[0] = 0  # no other document begins in the row
            alpha, _ = _scaled(alpha)

    def _backward(self, row: np.ndarray, whole: bool) -> Iterator[tuple[np.ndarray, float]]:
        """(message (Q, X), log scale) for i = T, T-1, .. 0: beta_i = message * exp(log scale)."""
        beta, log_scale = np.ones((self.machine.Q, self.machine.X)), 0.0
        if whole:
            beta[:] = 0
            beta[0, 0] = 1  # the last token ended the document
        yield beta, log_scale
        for i in range(len(row) - 1, -1, -1):
            beta = self._left(beta, row[i])
            if whole and i > 0:
                beta[0] = 0  # likewise
            beta, log_sum = _scaled(beta)
            log_scale += log_sum
            yield beta, log_scale

    def _betas(
        self, b: int, row: np.ndarray, first: np.ndarray, whole: bool, wanted: set[int]
    ) -> dict[int, np.ndarray]:
        """beta_i, each over its sum, of row b for the i in `wanted`. ValueError where no text fits it."""
        times, kept = range(len(row), -1, -1), {}
        for i, (beta, _) in zip(times, self._backward(row, whole)):
            if i in wanted:
                kept[i] = beta
        if not (first * beta).any():
            kind = f"document of {len(row)} tokens" if whole else "text"
            raise ValueError(
                f"row {b}: the grammar has no {kind} with these known tokens: change them, or mask some"
            )
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


def _scaled(message: np.ndarray) -> tuple[np.ndarray, float]:
    """The message over its sum, and the log of that sum; as it is, and -inf, where all of it is 0."""
    total = message.sum()
    if total == 0:
        return message, -np.inf
    return message / total, float(np.log(total))


def _draw(p: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """An index (N,) drawn from each row of p (N, V) or (1, V), which need not sum to 1.

    `uniform` (N,) is in [0, 1)."""
    cumulative = p.cumsum(1)
    return (cumulative <= uniform[:, None] * cumulative[:, -1:]).sum(1)
