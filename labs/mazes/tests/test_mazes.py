"""Mazes: how they are drawn, which answers are right, their exact distributions, the corpus."""

import math
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest

from data.open import prepared
from data.tokens import open_tokens
from labs.mazes.mazes import FREE, GOAL, PATH, START, UNKNOWN, WALL, WORDS, Answers, Mazes
from labs.orders.measure import OrdersConfig, OrdersSession, tables
from labs.sequences.two_sided import two_sided
from tables.views import mean

Cell = tuple[int, int]
SMALL = Mazes(5, 7, walls=2, distance=3)


def grid(text: str) -> np.ndarray:
    return np.array([[WORDS.index(cell) for cell in line.split()] for line in text.strip().splitlines()])


def sequence(maze: str, answer: str) -> np.ndarray:
    """(1, T)"""
    return np.concatenate((grid(maze), grid(answer))).reshape(1, -1)


def next_to(maze: np.ndarray, cell: Cell) -> Iterator[Cell]:
    for down, right in ((0, 1), (1, 0), (0, -1), (-1, 0)):
        row, column = cell[0] + down, cell[1] + right
        if 0 <= row < maze.shape[0] and 0 <= column < maze.shape[1] and maze[row, column] != WALL:
            yield row, column


def one(maze: np.ndarray, kind: int) -> Cell:
    [(row, column)] = np.argwhere(maze == kind)
    return int(row), int(column)


def every_answer(maze: np.ndarray) -> np.ndarray:
    """One for each shortest path, (n, cells): all paths from the start, a step longer each time."""
    paths, goal = [[one(maze, START)]], one(maze, GOAL)
    while not any(path[-1] == goal for path in paths):
        paths = [[*path, cell] for path in paths for cell in next_to(maze, path[-1]) if cell not in path]
    out = []
    for path in paths:
        if path[-1] == goal:
            answer = maze.copy()
            for cell in path[1:-1]:
                answer[cell] = PATH
            out.append(answer.ravel())
    return np.array(out)


@pytest.fixture(scope="module")
def some() -> list[tuple[np.ndarray, np.ndarray]]:
    """Small mazes (cells,), and all answers of each (n, cells)."""
    drawn = SMALL.halves(SMALL.sample(12, np.random.default_rng(0)))[0]
    found = [(maze.ravel(), every_answer(maze)) for maze in drawn]
    assert {len(answers) for _, answers in found} > {1, 4}
    return found


@pytest.mark.parametrize("sizes", [(13, 21, 15, 6), (9, 11, 4, 8), (5, 3, 2, 2), (3, 3, 1, 1), (5, 5, 0, 1)])
def test_every_maze_is_one(sizes):
    task = Mazes(*sizes)
    x = task.sample(150, np.random.default_rng(1))
    assert x.shape == (150, 2 * sizes[0] * sizes[1]) and task.valid(x).all()
    for maze in task.halves(x)[0]:
        assert (maze == START).sum() == (maze == GOAL).sum() == 1 and PATH not in maze
        assert not (maze[::2, ::2] == WALL).any()  # between posts alone
        reached, now, steps = {one(maze, START)}, [one(maze, START)], {}
        while now:
            steps |= dict.fromkeys(now, len(set(steps.values())))
            now = list({cell for old in now for cell in next_to(maze, old)} - reached)
            reached |= set(now)
        assert len(reached) == (maze != WALL).sum()  # every free cell
        assert steps[one(maze, GOAL)] >= sizes[3]
    assert np.array_equal(x, task.sample(150, np.random.default_rng(1)))


def test_walls_begin_apart_and_are_straight():
    walls = Mazes(13, 21, walls=15)._walls(200, np.random.default_rng(2))
    posts = walls[:, 1::2, 1::2].sum((1, 2))
    assert posts.min() >= 15 and posts.max() <= 60  # each begins at a post of its own
    walls = Mazes(13, 21, walls=1)._walls(200, np.random.default_rng(3))
    assert (np.minimum(walls.any(1).sum(1), walls.any(2).sum(1)) == 1).all()
    cells = walls.sum((1, 2))
    assert cells.min() == 2 and cells.max() == 13  # one step into the border; six steps


def test_all_shortest_paths_are_equally_likely(monkeypatch):
    """Chi-square of the answers of each start and goal between the same walls, five standard deviations. For
    equal probabilities its mean and variance are exact for any numbers."""
    wall = SMALL._walls(1, np.random.default_rng(1))
    monkeypatch.setattr(SMALL, "_walls", lambda n, rng: np.repeat(wall, n, 0))
    x = SMALL.sample(4000, np.random.default_rng(4))
    counts: dict[tuple, list[int]] = {}
    for row, n in Counter(map(tuple, x.tolist())).items():
        counts.setdefault(row[:35], []).append(n)
    answers = {row[:35]: round(math.exp(-p)) for row, p in zip(map(tuple, x.tolist()), SMALL.log_prob(x))}
    surplus = variance = 0.0
    for maze, seen in counts.items():
        n, k = sum(seen), answers[maze]
        assert len(seen) <= k
        surplus += k / n * sum(c * c for c in seen) - n - (k - 1)
        variance += 2 * (k - 1) * (n - 1) / n
    assert max(answers.values()) > 4 and abs(surplus) < 5 * math.sqrt(variance)


MAZE = """
S . . . .
. # # # .
. . . . G
"""


@pytest.mark.parametrize(
    "answer, solved, optimal",
    [
        ("S . . . . \n * # # # . \n * * * * G", True, True),
        ("S * * * * \n . # # # * \n . . . . G", True, True),
        ("S . . . . \n . # # # . \n . . . . G", False, False),  # no path
        ("S . . . . \n * # # # . \n * * . * G", False, False),  # a gap
        ("S * . . . \n * # # # . \n * * * * G", False, False),  # a branch
        ("S . * . . \n * # # # . \n * * * * G", False, False),  # more is drawn
        ("S * * * * \n * # # # * \n * * * * G", False, False),  # both ways
        ("S . . . . \n * # # . . \n * * * * G", False, False),  # a wall is gone
        ("S . . . . \n * # # # . \n * * * G .", False, False),  # another goal
        (". . . . . \n S # # # . \n * * * * G", False, False),  # another start
    ],
)
def test_which_answers_are_right(answer, solved, optimal, maze=MAZE):
    task, x = Mazes(3, 5, 1), sequence(maze, answer)
    assert [found[0] for found in task.solved(x)] == [solved, optimal]
    assert task.valid(x)[0] == optimal == (task.log_prob(x)[0] > -math.inf)


@pytest.mark.parametrize(
    "maze",
    [
        "S . G . G\n . . . . .\n . . . . .",
        "S . . . .\n . . . . .\n . . . . .",
        "S # G . .\n # # . . .\n . . . . .",
        "S * G . .\n . . . . .\n . . . . .",
    ],
)
def test_what_is_no_maze_has_no_answer(maze):
    test_which_answers_are_right(maze, False, False, maze)
    with pytest.raises(ValueError, match="row 0"):
        Mazes(3, 5, 1).log_probs(sequence(maze, maze))


def test_log_probs_by_enumeration(some):
    """Of any known cells; rows that agree with no answer are refused."""
    rng = np.random.default_rng(5)
    refused = 0
    for maze, answers in some:
        rows = np.concatenate((np.tile(maze, (len(answers), 1)), answers), 1)
        assert SMALL.log_prob(rows) == pytest.approx(-math.log(len(answers)))
        for share in (0, 0.1, 0.3, 0.8, 1):
            truth = answers[rng.integers(len(answers))]
            wrong = np.where((maze == FREE) & (rng.random(35) < 0.03), rng.choice([FREE, PATH], 35), truth)
            for cells in (truth, wrong):
                known = np.where(rng.random(35) < share, cells, UNKNOWN)
                row = np.concatenate((maze, known))[None]
                agree = answers[((known == UNKNOWN) | (known == answers)).all(1)]
                if not len(agree):
                    refused += 1
                    with pytest.raises(ValueError, match="row 0"):
                        SMALL.log_probs(row)
                    continue
                expected = (agree[..., None] == np.arange(5)).mean(0)
                found = np.exp(SMALL.log_probs(row)[0])
                np.testing.assert_allclose(found[35:], expected, rtol=1e-12, atol=1e-14)
                assert np.array_equal(found[:35], np.eye(5)[maze])
    assert refused > 2


SOURCE = "height=5 width=7 walls=2 distance=3 train=30 validation=4 test=3"


def test_the_truth_of_a_split(tmp_path):
    held = open_tokens(prepared("mazes", "words", SOURCE, tmp_path) / "test.bin")
    truth = two_sided(held, "mazes", 70)
    assert isinstance(truth, Answers) and two_sided(held, "mazes", 35) is None
    x = held.ids[:210].reshape(3, 70).astype(int)
    entropy = np.mean([math.log(len(every_answer(row[:35].reshape(5, 7)))) for row in x])
    session = SimpleNamespace(truth=truth, data=held, length=70, c=OrdersConfig([], texts=2))
    (reference,) = OrdersSession.references(session)
    found = reference["judgements"]
    assert found["nll"] == pytest.approx(entropy) and found["judged"] == 2  # of all, not of the judged
    row = {"name": "a", "row": "a", "seed": 1, "nll": 2.0, "left_1": 0.5, "nll_own": 3.0}
    [one_table] = tables([row], found)
    assert one_table.loc["truth"].tolist() == ["", mean([entropy]), "", mean([entropy])]
    assert truth.judge(x) == {"solved": 1, "optimal": 1, "true_nll": pytest.approx(entropy), "judged": 3}
    x[0, 35:] = x[0, :35]  # no path
    assert truth.judge(x)["solved"] == pytest.approx(2 / 3)
    assert math.isnan(truth.judge(x[:1])["true_nll"])
    x[:, 40] = UNKNOWN
    asked = x == UNKNOWN
    np.testing.assert_allclose(np.exp(truth.log_probs(x[1:], asked[1:])).sum(1), 1)
