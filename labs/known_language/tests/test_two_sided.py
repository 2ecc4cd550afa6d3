"""The distribution of unknown tokens given known ones on both sides, against a sum over all texts."""

import numpy as np
import pytest

from labs.known_language.grammar.grammar import build_language
from labs.known_language.grammar.machine import UNKNOWN, Machine, Tables
from labs.known_language.grammar.prepare import GrammarSettings
from labs.known_language.two_sided import MASKED, ForwardBackward

T = 5


def documents() -> Machine:
    """8 words, 2 themes, 4 places, documents of 3 words or more. As in the language, the first word sets the
    theme, and one class has words of one theme only."""
    after = np.full((4, 5), -1)
    syntax = np.zeros((4, 5))
    arcs = [[(0, 1.0, 1)], [(1, 0.5, 2), (2, 0.3, 1), (3, 0.2, 3)], [(1, 0.4, 1), (4, 0.6, 0)]]
    arcs.append([(1, 0.7, 3), (2, 0.3, 2)])
    for q, ways in enumerate(arcs):
        for c, p, to in ways:
            syntax[q, c], after[q, c] = p, to
    klass = np.array([0, 0, 1, 1, 2, 2, 3, 4])
    lexicon = np.array([[0.7, 0.3, 0.9, 0.1, 1, 0, 1, 1], [0.7, 0.3, 0.2, 0.8, 0, 1, 1, 1]])
    return Machine(Tables(klass, syntax, after, lexicon, np.array([0, 1, -1, -1, -1, -1, -1, -1])))


def wild() -> Machine:
    """Words that set a theme stand anywhere, in one class with words that do not."""
    rng = np.random.default_rng(0)
    klass = np.array([0, 0, 1, 1, 1, 2])
    after = np.array([[1, 2, -1], [2, 1, 0], [1, 1, 0]])
    syntax = np.where(after >= 0, rng.random((3, 3)) + 0.1, 0)
    lexicon = rng.random((3, 6)) + 0.1
    for own in (klass == 0, klass == 1, klass == 2):
        lexicon[:, own] /= lexicon[:, own].sum(1, keepdims=True)
    theme = np.array([2, -1, 0, -1, 1, -1])
    return Machine(Tables(klass, syntax / syntax.sum(1, keepdims=True), after, lexicon, theme))


@pytest.fixture(scope="module", params=[documents, wild])
def exact(request) -> ForwardBackward:
    return ForwardBackward(request.param())


@pytest.fixture(scope="module")
def small() -> ForwardBackward:
    return ForwardBackward(documents())


def texts(machine: Machine, length: int = T) -> np.ndarray:
    """All texts of `length` words (V ** length, length)."""
    return np.stack(np.unravel_index(np.arange(machine.V**length), [machine.V] * length), 1)


def joint(exact: ForwardBackward) -> np.ndarray:
    """p(text) of all texts (V, V, .., V), from the machine's left-to-right probabilities."""
    machine, rows = exact.machine, texts(exact.machine)
    first = machine.visits / machine.visits.sum()
    total = np.zeros(len(rows))
    for state in np.flatnonzero(first):
        states = machine.parse(rows, state)
        each = machine.probs(states.ravel()).reshape(*states.shape, machine.V)
        p = np.take_along_axis(each, rows[..., None], 2)[..., 0]
        total += first[state] * np.where(states == UNKNOWN, 0, p).prod(1)
    return total.reshape([machine.V] * T)


def given(p: np.ndarray, row: np.ndarray, i: int) -> np.ndarray:
    """p(x_i | known tokens of `row`) (V,) by a sum over the texts that have them."""
    known = p[tuple(slice(None) if word == MASKED else slice(word, word + 1) for word in row)]
    marginal = known.sum(tuple(axis for axis in range(T) if axis != i))
    return marginal / marginal.sum()


def some_texts(p: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """n possible texts (n, T), each equally likely, so that rare ones are among them."""
    return np.argwhere(p > 0)[rng.integers((p > 0).sum(), size=n)]


def masks(rng: np.random.Generator) -> np.ndarray:
    """Which tokens are known: none, all but one, a prefix, a suffix, random (n, T)."""
    sides = np.tri(T, T, -1, bool)
    return np.concatenate([~np.eye(T, dtype=bool), sides, sides[:, ::-1], rng.random((30, T)) < 0.5])


def test_marginals(exact):
    rng, p = np.random.default_rng(1), joint(exact)
    assert p.sum() == pytest.approx(1)
    known = masks(rng)
    rows = np.where(known, some_texts(p, len(known), rng), MASKED)
    found = np.exp(exact.log_probs(rows))
    expected = np.array([given(p, rows[b], i) for b, i in np.argwhere(~known)])
    assert found == pytest.approx(expected, abs=1e-13) and ((found == 0) == (expected == 0)).all()
    assert (rows[:, :-1] == exact.machine.end).any()  # an end inside the window


def test_only_what_is_asked(exact):
    rng, p = np.random.default_rng(2), joint(exact)
    rows = np.where(rng.random((20, T)) < 0.4, some_texts(p, 20, rng), MASKED)
    at = (rows == MASKED) & (rng.random(rows.shape) < 0.3)
    everything = exact.log_probs(rows)
    assert 0 < at.sum() < len(everything) and not at.any(1).all()  # nothing is asked of some rows
    assert np.array_equal(exact.log_probs(rows, at), everything[at[rows == MASKED]])


def test_the_stream_looks_the_same_everywhere(small):
    p = np.exp(small.log_probs(np.full((1, 12), MASKED)))
    assert p == pytest.approx(np.tile(p[0], (12, 1)))
    assert p[0, small.machine.end] == pytest.approx(1 / small.machine.visits.sum())
    began = np.full((1, 12), MASKED)
    began[0, 0] = small.machine.end
    assert np.exp(small.log_probs(began))[0] == pytest.approx([0.7, 0.3, 0, 0, 0, 0, 0, 0])


def logsumexp(x: np.ndarray, axis: int) -> np.ndarray:
    return np.logaddexp.reduce(x, axis)  # for small arrays ten times as fast as scipy's


def test_a_long_text_does_not_underflow(small):
    """Against sums of logarithms, where the probability itself is below the least float64."""
    M, rng = small.machine, np.random.default_rng(6)
    ids = np.concatenate(M.sample(900, rng))[:2000]
    row = np.where(rng.random(2000) < 0.8, ids, MASKED)
    states = np.arange(M.Q * M.X)
    with np.errstate(divide="ignore"):
        moves = np.full((M.V, len(states), len(states)), -np.inf)  # log p(w, state after | state before)
        for w in range(M.V):
            moves[w, states, M.step(states, np.full(len(states), w))] = np.log(M.probs(states)[:, w])
        alphas, beta = [np.log(M.visits / M.visits.sum())], np.zeros(len(states))
        unknown = logsumexp(moves, 0)
        for w in row:
            alphas.append(logsumexp(alphas[-1][:, None] + (unknown if w == MASKED else moves[w]), 0))
        expected = []
        for alpha, w in zip(alphas[-2::-1], row[::-1]):
            if w == MASKED:
                both = (alpha[:, None] + moves + beta).reshape(M.V, -1)
                expected.append(logsumexp(both, 1) - logsumexp(alphas[-1], 0))
            beta = logsumexp((unknown if w == MASKED else moves[w]) + beta, 1)
    assert np.exp(logsumexp(alphas[-1], 0)) == 0
    assert np.exp(small.log_probs(row[None])) == pytest.approx(np.exp(expected[::-1]), abs=1e-10)


@pytest.mark.parametrize("row", [[7, 0, 7, MASKED], [7, 0, MASKED, 5, MASKED], [7, 7, MASKED]])
def test_impossible_tokens(small, row):
    """No document has two words, nor one word, nor the name of another theme."""
    rows = np.array([np.full(len(row), MASKED), row, row])
    for at in (None, np.zeros(rows.shape, bool)):  # or nothing is asked
        with pytest.raises(ValueError, match="row 1"):
            small.log_probs(rows, at)


def test_a_prefix_alone_gives_the_next_token_probabilities():
    """Of the language that ships: where no token after it is known, the truth of the next token."""
    language = build_language(GrammarSettings())[1]
    documents = language.sample(4, np.random.default_rng(0))
    ids = np.concatenate(documents)
    states = language.parse_stream(ids)
    positions = np.array([0, 1, 7, len(documents[0]), len(documents[0]) + 9])
    begun = np.append(language.end, ids)  # a document begins where another ended
    rows = np.tile(begun[: positions.max() + 4], (len(positions), 1))
    rows[np.arange(rows.shape[1]) > positions[:, None]] = MASKED
    at = np.arange(rows.shape[1]) == positions[:, None] + 1
    found = np.exp(ForwardBackward(language).log_probs(rows, at))
    assert found == pytest.approx(language.probs(states[positions]), rel=1e-10, abs=1e-300)
