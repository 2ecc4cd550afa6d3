"""The synthetic tasks: exact distributions given any known tokens, and the walk measure."""

import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from itertools import pairwise, permutations, product
from pathlib import Path

import numpy as np
import pytest

from common.errors import UserError
from data.open import prepared
from data.tokens import open_tokens
from labs.sequences.exact import Chain, Sequences, SequenceTask
from labs.synthetic.tasks import TASKS, UNKNOWN, Permutation, Product, StepFunction, Walk
from tests.fixtures import chi_square, train_on
from tests.measure_contract import *  # noqa: F403
from tests.measure_contract import Example, measure_into, rows_of


def small_chain() -> Chain:
    """Four hidden states that show three tokens, some steps impossible."""
    rng = np.random.default_rng(0)
    step = rng.random((4, 4)) * (rng.random((4, 4)) < 0.7) + np.eye(4)
    first = np.array([0.5, 0.3, 0.2, 0.0])
    return Chain(5, ["a", "b", "c"], first, step / step.sum(1, keepdims=True), np.array([0, 1, 1, 2]))


STARTS = (1, 3, 4)
MOVES = {1: Fraction(2, 5), -1: Fraction(2, 5), 0: Fraction(1, 5)}
CHAIN = small_chain()


def of_walk(x: tuple[int, ...]) -> float:
    """Values, not tokens: the least is the lowest start less three steps."""
    values = [v + min(STARTS) - 3 for v in x]
    p = Fraction(values[0] in STARTS, len(STARTS))
    for a, b in pairwise(values):
        p *= MOVES.get(b - a, 0)
    return float(p)


@cache
def paths_of_chain() -> dict[tuple[int, ...], float]:
    """A sum over all paths of hidden states."""
    total: dict[tuple[int, ...], float] = {}
    for path in product(range(4), repeat=CHAIN.T):
        shown = tuple(CHAIN.token[list(path)].tolist())
        p = CHAIN.first[path[0]] * math.prod(CHAIN.step[a, b] for a, b in pairwise(path))
        total[shown] = total.get(shown, 0) + p
    return total


# a short task of each kind, and the probability of a sequence
SMALL: dict[str, tuple[SequenceTask, Callable[[tuple[int, ...]], float]]] = {
    "chain": (CHAIN, lambda x: paths_of_chain().get(x, 0.0)),
    "product": (Product(5, 0.3), lambda x: 0.3 ** sum(x) * 0.7 ** (len(x) - sum(x))),
    "step": (StepFunction(7, 3), lambda x: 1 / 5 if "".join(map(str, x)).strip("0") == "111" else 0.0),
    "permutation": (Permutation(4), lambda x: 1 / 24 if x in permutations(range(4)) else 0.0),
    "walk": (Walk(4, STARTS), of_walk),
}


@pytest.fixture(scope="module", params=list(SMALL))
def small(request) -> tuple[SequenceTask, np.ndarray, np.ndarray]:
    """A short task, all sequences of its tokens (V^T, T), and the probability of each, written down anew."""
    task, law = SMALL[request.param]
    every = list(product(range(task.V), repeat=task.T))
    return task, np.array(every), np.array([law(x) for x in every])


@pytest.fixture(scope="module", params=list(TASKS))
def task(request) -> SequenceTask:
    """A task of more tokens than can be enumerated."""
    return TASKS[request.param](40)


def test_sequences_have_their_probabilities(small):
    task, every, p = small
    assert p.sum() == pytest.approx(1)
    with np.errstate(divide="ignore"):
        assert task.log_prob(every) == pytest.approx(np.log(p))
    assert np.array_equal(task.valid(every), p > 0)


def test_log_probs_by_enumeration(small):
    """For every set of known positions, and sequences that are possible."""
    task, every, p = small
    rng = np.random.default_rng(0)
    for known in map(np.array, product([False, True], repeat=task.T)):
        rows = np.where(known, task.sample(4, rng), UNKNOWN)
        agree = ((rows[:, None] == every) | ~known).all(2) * p  # (4, V^T)
        expected = np.stack([agree @ (every == v) for v in range(task.V)], 2) / agree.sum(1)[:, None, None]
        np.testing.assert_allclose(np.exp(task.log_probs(rows)), expected, rtol=1e-12, atol=1e-14)
        if isinstance(task, Chain):
            np.testing.assert_allclose(task.log_evidence(rows), np.log(agree.sum(1)), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("given", [1, 2])
def test_what_is_given_is_not_counted(given):
    every = np.array(list(product(range(3), repeat=CHAIN.T)))
    p = np.array([SMALL["chain"][1](tuple(x)) for x in every.tolist()])
    begins = (every[:, None, :given] == every[None, :, :given]).all(2)
    possible, begun = p > 0, begins @ p > 0
    expected = np.log((begins @ p)[possible] / p[possible])
    truth = Sequences(CHAIN, given)
    np.testing.assert_allclose(truth.nats(every[possible]), expected, rtol=1e-12)
    judged = truth.judge(every[begun])
    assert judged["validity"] == possible[begun].mean()
    assert judged["true_nll"] == pytest.approx(expected.mean())


def test_impossible_rows_are_named(small):
    """What is refused is what enumeration says: rows of any tokens, known or not."""
    task, every, p = small
    rng = np.random.default_rng(1)
    refused = 0
    some = every[rng.integers(len(every), size=100)]
    for row in np.where(rng.random(some.shape) < 0.4, UNKNOWN, some):
        rows = np.stack((np.full(task.T, UNKNOWN), row))
        if (((row == every) | (row == UNKNOWN)).all(1) * p).sum() > 0:
            assert np.isfinite(task.log_probs(rows).max(2)).all()
            continue
        refused += 1
        with pytest.raises(ValueError, match="row 1"):
            task.log_probs(rows)
    assert (refused == 0) == isinstance(task, Product)


def test_chain_rule_in_any_order(task):
    """log p(x) is the sum of log p(x_i | those before it in the order)."""
    rng = np.random.default_rng(2)
    x = task.sample(5, rng)
    order = rng.permuted(np.tile(np.arange(task.T), (5, 1)), axis=1)
    tokens, total, rows = np.full_like(x, UNKNOWN), np.zeros(5), np.arange(5)
    for at in order.T:
        total += task.log_probs(tokens)[rows, at, x[rows, at]]
        tokens[rows, at] = x[rows, at]
    assert total == pytest.approx(task.log_prob(x), rel=1e-12)
    assert np.exp(task.log_probs(x)).sum(2) == pytest.approx(1)
    assert np.array_equal(task.log_probs(x).argmax(2), x)
    x = task.sample(200, rng)
    assert x.shape == (200, 40) and x.dtype == np.int64 and task.valid(x).all()
    x[0, 20] = UNKNOWN
    assert not task.valid(x)[0]


def test_samples(small):
    """Frequencies by chi-square, five standard deviations; and a sample is a function of the seed."""
    task, every, p = small
    x = task.sample(20_000, np.random.default_rng(4))
    place = task.V ** np.arange(task.T)[::-1]
    counts = np.bincount(x @ place, minlength=len(every))
    assert not counts[p == 0].any() and abs(chi_square(counts, p)) < 5
    assert np.array_equal(x, task.sample(20_000, np.random.default_rng(4)))


def test_the_longest_walk_does_not_underflow():
    walk = Walk(Walk.LONGEST)
    still = np.full((1, walk.T), walk.starts[0])  # the least probable of all sequences
    straight = walk.starts[-1] + np.arange(walk.T)[None]
    for x in (still, straight):
        assert np.array_equal(walk.log_probs(x).argmax(2), x)
    ends = np.where(np.isin(np.arange(walk.T), (0, walk.T - 1)), straight, UNKNOWN)
    assert np.array_equal(walk.log_probs(ends).argmax(2), straight)
    with pytest.raises(ValueError, match="length = 401"):
        Walk(Walk.LONGEST + 1)


@pytest.fixture(scope="module")
def walks(tmp_path_factory) -> tuple[Path, np.ndarray]:
    """A folder of walks of 12 places, with those of the test split (40, 12). Read only."""
    source = "walk length=12 train=20 validation=2 test=40"
    folder = prepared("synthetic", "words", source, tmp_path_factory.mktemp("walks"))
    return folder, open_tokens(folder / "test.bin").ids[:480].reshape(40, 12)


@pytest.fixture(scope="module")
def example(walks, tmp_path_factory):
    (folder, rows), out = walks, tmp_path_factory.mktemp("run") / "random"
    train_on(folder, out, dataset="synthetic", block_size=12, trunk="any_order")
    value = int(np.bincount(rows[:, 3]).argmax()) + Walk(12).low
    other = int(np.bincount(rows[:, 0]).argmax()) + Walk(12).low
    return Example("walk", [out], ["--place=3", f"--value={value}"], f"--place=0 --value={other}")


def test_the_walk_measure(walks, example, measured, tmp_path):
    [row], value = rows_of(measured), int(example.flags[1].split("=")[1])
    assert row["walks"] == (walks[1][:, 3] == value - Walk(12).low).sum() and row["settings"]["place"] == 3
    assert min(row["kl_before"], row["kl_after"]) > 0
    assert measure_into(tmp_path / "first", example, *example.other.split()) == 0
    [row] = rows_of(tmp_path / "first")
    assert "kl_before" not in row and row["kl_after"] > 0  # nothing stands before the first place
    with pytest.raises(UserError, match="place"):
        measure_into(tmp_path / "t", example, "--place=12")
