"""Mazes and their answers: the path-solving experiment of sigma-GPTs (arXiv 2404.09562, section 3.1).

A sequence is a maze, cell by cell and row by row, then the same maze with a path from start to goal drawn in:

    .  free    #  wall    S  start    G  goal    *  path, in the answer alone

The document says 13 x 21 cells with 15 barriers, a start and an end; the rest is chosen here:

- Cells of an odd row and an odd column, counted from 0, are posts. Height and width are odd, so no post is at
  the border. A wall begins at a post that is free, each with the same probability, and grows straight in one
  of the four directions from post to post. Its length is uniform from 1 to the number of posts across the
  shorter side. It ends sooner where it meets another wall or the border. So a wall touches what was there at
  one end at most, no ring is ever closed, and every free cell can be reached from every other.
- The start is uniform over the free cells, the goal over those at least `distance` steps from it. Where there
  is none, another maze is drawn.
- The answer is uniform over all shortest paths. A step is to one of the four neighbours.

So p(cell | maze, any known cells of the answer) is exact. The cells of shortest paths lie in layers by their
distance from the start, each shortest path has one cell in each layer, and those through a cell that agree
with all known cells are counted by sums over neighbours, from the start and from the goal.
"""

import math
from typing import NamedTuple

import numpy as np

from common.errors import UserError
from labs.sequences.exact import UNKNOWN, Sequences, SequenceTask, mean

WORDS = [".", "#", "S", "G", "*"]
FREE, WALL, START, GOAL, PATH = range(len(WORDS))
TRIES = 10_000  # mazes that are drawn before it is said that none has a goal so far away


class Mazes(SequenceTask):
    """Mazes of height x width cells and their answers. All distributions are given the maze: `log_prob` is of
    the answer, and each row of `log_probs` has its whole maze known."""

    def __init__(self, height: int = 13, width: int = 21, walls: int = 15, distance: int = 6):
        for name, side in (("height", height), ("width", width)):
            if side < 3 or side % 2 == 0:
                raise UserError(f"{name} = {side}: must be odd and at least 3: walls run along odd rows")
        super().__init__(2 * height * width, WORDS)
        self.height, self.width, self.walls, self.distance = height, width, walls, distance

    def halves(self, sequences: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The mazes and the answers of sequences (n, T), each (n, height, width)."""
        grids = sequences.reshape(len(sequences), 2, self.height, self.width)
        return grids[:, 0], grids[:, 1]

    def solved(self, sequences: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which of the sequences (n, T) are solved, and which by a shortest path: (n,) bool each.

        Solved: the answer is the same maze with one path drawn in, from start to goal without branches or
        loops. A path that touches itself has a loop. Nothing else may be drawn.
        """
        maze, answer = self.halves(self._checked(sequences))
        shortest = shortest_paths(maze)
        same = (answer == maze) | ((answer == PATH) & (maze == FREE))
        drawn = np.isin(answer, (START, GOAL, PATH))
        due = np.where(answer == PATH, 2, 1)  # neighbours on the path
        steps = distances(answer == START, drawn)
        fine = same & (~drawn | ((around(drawn.astype(int)) == due) & (steps >= 0)))
        solved = fine.all((1, 2)) & shortest.on.any((1, 2))
        nearest = (answer != GOAL) | (steps == shortest.from_start)
        return solved, solved & nearest.all((1, 2))

    def _log_prob(self, sequences: np.ndarray) -> np.ndarray:
        maze, _ = self.halves(sequences)
        shortest = shortest_paths(maze)
        paths = (ways(shortest.to_goal, shortest.on) * (maze == START)).sum((1, 2))
        _, optimal = self.solved(sequences)
        return np.where(optimal, -np.log(np.maximum(paths, 1)), -math.inf)

    def weights(self, tokens: np.ndarray) -> np.ndarray:
        maze, answer = self.halves(tokens)
        unknown = np.flatnonzero((maze == UNKNOWN).any((1, 2)))
        if len(unknown):
            raise ValueError(f"row {unknown[0]}: its maze has unknown cells: only those of an answer may be")
        shortest = shortest_paths(maze)
        allowed = shortest.on & (answer != FREE) & ~_beside(answer == PATH, shortest.from_start)
        through = ways(shortest.from_start, allowed) * ways(shortest.to_goal, allowed)  # shortest paths
        total = (through * (maze == START)).sum((1, 2))[:, None, None]
        cells = np.arange(self.V) == maze[..., None]  # an answer has what the maze has
        path = through * (maze == FREE)  # but for its path
        answers = cells * total[..., None]
        answers[..., FREE] = np.maximum(answers[..., FREE] - path, 0)
        answers[..., PATH] += path
        weights = np.concatenate((cells, answers), 1).reshape(len(tokens), self.T, self.V)
        return weights * self._possible(tokens)

    # ---- drawing ---------------------------------------------------------------------------------

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Sequences (n, T). UserError if no maze has a start and a goal so far apart."""
        parts: list[np.ndarray] = []
        drawn = tried = 0
        while drawn < n:
            if tried >= TRIES and not drawn:
                raise UserError(
                    f"distance = {self.distance}: none of {tried:,} mazes of {self.height} x {self.width} "
                    "cells has a goal so far from its start: use a smaller distance"
                )
            count = max(64, n - drawn)
            parts.append(self._draw(count, rng))
            tried, drawn = tried + count, drawn + len(parts[-1])
        return np.concatenate(parts)[:n]

    def _draw(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """The sequences of n mazes, but for those that have no goal."""
        wall = self._walls(n, rng)
        start = one_of(~wall, rng)
        goal = one_of(distances(start, ~wall) >= self.distance, rng)
        maze = np.select([wall, start, goal], [WALL, START, GOAL], FREE)[goal.any((1, 2))]
        shortest = shortest_paths(maze)
        to_choose = ways(shortest.to_goal, shortest.on)
        path, now = np.zeros_like(shortest.on), maze == START
        for step in range(1, int(shortest.from_start.max(initial=0)) + 1):
            # in proportion to the paths that go on from there, each path is as probable as any other
            now = one_of(to_choose * (around(now) & (shortest.from_start == step)), rng)
            path |= now
        answer = np.where(path & (maze == FREE), PATH, maze)
        return np.concatenate((maze, answer), 1).reshape(len(maze), self.T)

    def _walls(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """The cells that are walls, of n mazes (n, height, width)."""
        wall = np.ones((n, self.height + 2, self.width + 2), bool)  # with a border around it
        inside = wall[:, 1:-1, 1:-1]
        inside[:] = False
        posts = inside[:, 1::2, 1::2]
        longest = min(posts.shape[1:])
        for _ in range(self.walls):
            # without the mazes in which no post is free
            maze, row, column = np.nonzero(one_of(~posts, rng))
            at = 2 + 2 * np.stack((row, column), 1)
            length = rng.integers(1, longest + 1, size=len(maze))
            ahead = np.array([(0, 1), (1, 0), (0, -1), (-1, 0)])[rng.integers(4, size=len(maze))]
            wall[maze, *at.T] = True
            for step in range(1, longest + 1):
                wall[maze, *(at + ahead).T] = True
                at = at + 2 * ahead
                going = ~wall[maze, *at.T] & (step < length)
                wall[maze, *at.T] = True
                maze, at, length, ahead = (x[going] for x in (maze, at, length, ahead))
        return inside


# ---- grids: arrays (n, height, width) --------------------------------------------------------------


class Shortest(NamedTuple):
    """The shortest paths of mazes."""

    from_start: np.ndarray  # steps from the start, -1 where there is no way
    to_goal: np.ndarray
    on: np.ndarray  # the cells of all shortest paths; none where the grid is no maze


def shortest_paths(maze: np.ndarray) -> Shortest:
    """The shortest paths of grids of any tokens. A grid is a maze if it has exactly one start, exactly one
    goal, which can be reached, and no token that mazes do not have."""
    start, goal = maze == START, maze == GOAL
    known = np.isin(maze, (FREE, WALL, START, GOAL)).all((1, 2))
    fine = known & (start.sum((1, 2)) == 1) & (goal.sum((1, 2)) == 1)
    from_start, to_goal = distances(start, maze != WALL), distances(goal, maze != WALL)
    length = from_start.max((1, 2), where=goal, initial=-1, keepdims=True)
    on = (from_start >= 0) & (from_start + to_goal == length) & fine[:, None, None]
    return Shortest(from_start, to_goal, on)


def around(cells: np.ndarray) -> np.ndarray:
    """The sum over the four neighbours of each cell; of bool whether there is one."""
    p = np.pad(cells, ((0, 0), (1, 1), (1, 1)))
    return p[:, :-2, 1:-1] + p[:, 2:, 1:-1] + p[:, 1:-1, :-2] + p[:, 1:-1, 2:]


def distances(source: np.ndarray, through: np.ndarray) -> np.ndarray:
    """Steps from the cells `source` by way of the cells `through`; -1 where there is no way."""
    steps, reached, now = np.where(source, 0, -1), 0, source
    while now.any():
        reached += 1
        now = around(now) & through & (steps < 0)
        steps[now] = reached
    return steps


def ways(steps: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """How many ways lead to each `allowed` cell from one of 0 `steps`, to one of 1, ... float64, exact up to
    2^53."""
    now = ((steps == 0) & allowed).astype(float)
    total = now
    for step in range(1, int(steps.max(where=allowed, initial=0)) + 1):
        now = around(now) * (allowed & (steps == step))
        total = total + now
    return total


def one_of(weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A cell of each grid in proportion to its weight, as bool grids; no cell where all weights are 0."""
    cumulative = weights.reshape(len(weights), -1).cumsum(1)
    at = (cumulative <= rng.random((len(weights), 1)) * cumulative[:, -1:]).sum(1)
    return (np.arange(cumulative.shape[1]) == at[:, None]).reshape(weights.shape)


def _beside(known: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """The cells that stand as many `steps` from the start as another cell that is `known` to be of the path:
    a shortest path has one cell of each distance."""
    grid, row, column = np.nonzero(known)
    many = np.zeros((len(known), steps.max(initial=0) + 2), int)  # the last column is for -1
    np.add.at(many, (grid, steps[grid, row, column]), 1)
    return many[np.arange(len(known))[:, None, None], steps] > known


class Answers(Sequences):
    """Mazes with their answers: `solved`, the share with a path from start to goal, `optimal`, the share with
    a shortest one, and `true_nll`, the mean -log p of these under the truth, nats an answer."""

    task: Mazes

    def nats(self, texts: np.ndarray) -> np.ndarray:
        """-log p (n,) of the answers; inf for one that is no shortest path."""
        return -self.task.log_prob(texts)

    def judge(self, texts: np.ndarray) -> dict[str, float]:
        solved, optimal = self.task.solved(texts)
        return {
            "solved": mean(solved),
            "optimal": mean(optimal),
            "true_nll": mean(self.nats(texts[optimal])),
            "judged": len(texts),
        }
