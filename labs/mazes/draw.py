"""Draws mazes as a run fills them in.

    python labs/mazes/draw.py out/mazes/sigma_gpt-mazes-1 [--out=out/mazes.filled]

A line is a maze of the test split: the maze, the exact density of shortest paths and, of a model that can be
asked about any place, what it says of each cell before anything is filled in (one pass). Then what has been
filled in after equal shares of the rounds, and last the answer. The path is coloured by the round in which it
came, from the first (dark) to the last (bright); grey is not filled in yet, red changes the maze itself.
Source: Pannatier et al. 2024, arXiv 2404.09562, fig. 3.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from common.config import Positive, Seed, cli, read
from common.errors import UserError
from common.files import check_writable
from data.open import found_path
from data.tokens import open_tokens
from evaluate.sampling import WEIGHT_DRAWS, weight_draws
from labs.mazes.mazes import FREE, GOAL, PATH, START, WALL, WORDS, Mazes
from labs.mazes.prepare import corpus
from labs.orders.asking import Asker
from labs.orders.filling import Filled
from labs.orders.readers import reader_of
from labs.orders.samplers import writers
from labs.sequences.questions import spread, templates
from tables import figures
from training.run import load_model


@dataclass
class MazesConfig:
    # fmt: off
    run: str                        # the out folder of a run on mazes
    mazes: Positive = 3             # of the test split, one a line
    sampler: str = ""               # see labs/orders/samplers.py; empty: the order of training, or the first
    moments: Positive = 3           # at which an unfinished answer is shown
    seed: Seed = 1                  # of the sample
    data: str = ""                  # the prepared data folder; empty: the one of the run
    out: str = "out/mazes.filled"       # writes OUT.png
    # fmt: on


if TYPE_CHECKING:
    from matplotlib.axes import Axes


@torch.no_grad()
def path_density(asker: Asker, begun: np.ndarray) -> np.ndarray:
    """The model's p(path) (n, cells) of each cell of the answers of `begun` (n, T), apart from each other."""
    n, T = begun.shape
    places = torch.arange(T // 2, T).expand(n, -1)
    answers = reader_of(asker.model, torch.from_numpy(begun), asker.draws, dtype=asker.dtype).each(places)
    return answers.probs(torch.full(places.shape, PATH)).numpy()


def base(ax: "Axes", maze: np.ndarray, title: str) -> None:
    """A maze without its answer: walls black, free cells white, start and goal lettered."""
    ax.imshow(np.where(maze == WALL, 0.0, 1.0), cmap="gray", vmin=0, vmax=1)
    for kind in (START, GOAL):
        for row, column in np.argwhere(maze == kind):
            ax.text(column, row, WORDS[kind], ha="center", va="center", size=7, weight="bold")
    ax.set(xticks=[], yticks=[], title=title)
    for spine in ax.spines.values():
        spine.set_visible(True)


def shade_cells(ax: "Axes", values: np.ndarray, shown: np.ndarray, cmap: str, most: float) -> None:
    """Colours over the cells that are `shown`."""
    ax.imshow(np.ma.masked_array(values, ~shown), cmap=cmap, vmin=0, vmax=most)


def line(
    axes: list["Axes"],
    maze: np.ndarray,
    densities: dict[str, np.ndarray],
    answer: np.ndarray,
    rank: np.ndarray,
    moments: int,
) -> None:
    """One maze; all arrays (height, width). `rank`: the round in which a cell was filled in."""
    rounds = int(rank.max())
    base(axes[0], maze, "maze")
    for ax, (title, p) in zip(axes[1:], densities.items()):
        base(ax, maze, title)
        shade_cells(ax, p, maze == FREE, "Purples", 1)
    for n, ax in enumerate(axes[1 + len(densities) :], 1):
        until = rounds * n // (moments + 1)
        base(ax, maze, f"{until} of {rounds} rounds" if until < rounds else "answer")
        shade_cells(ax, np.full(maze.shape, 0.3), (rank > until) & (maze != WALL), "Greys", 1)
        filled = rank <= until
        shade_cells(ax, rank, (answer == PATH) & filled, "viridis", rounds)
        wrong = (answer != maze) & ((answer != PATH) | (maze != FREE))
        shade_cells(ax, np.ones(maze.shape), wrong & filled, "Reds", 1.5)


def fill_mazes(c: MazesConfig) -> tuple[Mazes, np.ndarray, Asker, Filled]:
    """The mazes, sequences of the test split (n, T), the model and what it made of them."""
    model, ckpt = load_model(c.run, "last")
    if ckpt.config.dataset != "mazes":
        raise UserError(f"{c.run} was not trained on mazes: give a run of config/mazes.py")
    data = Path(c.data) if c.data else found_path(ckpt)
    tokens = open_tokens(data / "test.bin")
    task = corpus.task(str(tokens.info["source"]))
    asker = Asker(model, weight_draws(model, ckpt.record, WEIGHT_DRAWS, c.seed), "cpu", "float32")
    known = writers(asker.order)
    usual = asker.order == "any" and asker.fills == "random"
    sampler = c.sampler or ("random order" if usual else next(iter(known)))
    if sampler not in known:
        raise UserError(f"--sampler={sampler}: this model has {', '.join(known)}")
    rows = spread(tokens.ids, c.mazes, task.T)
    begun = torch.from_numpy(templates(rows, task.T // 2))
    return task, rows, asker, known[sampler](asker, begun, torch.Generator().manual_seed(c.seed))


def main(argv: list[str]) -> int:
    c = read(MazesConfig, argv, __doc__)
    check_writable(Path(f"{c.out}.png"))
    task, rows, asker, filled = fill_mazes(c)
    begun = templates(rows, task.T // 2)
    shape = (len(rows), task.height, task.width)
    exact = np.exp(task.log_probs(begun))[:, task.T // 2 :, PATH]
    densities = {"exact density": exact.reshape(shape)}
    if asker.order != "left_to_right":
        densities["model's density"] = path_density(asker, begun).reshape(shape)
    maze, answer = task.halves(filled.text.numpy())
    rank = task.halves(filled.rank.numpy())[1]
    plt = figures.pyplot()
    columns = 2 + len(densities) + c.moments
    size = (1.5 * columns, 1.7 * len(rows) * task.height / task.width)
    fig, axes = plt.subplots(len(rows), columns, figsize=size, squeeze=False)
    for n, row in enumerate(axes):
        of_maze = {title: p[n] for title, p in densities.items()}
        line(list(row), maze[n], of_maze, answer[n], rank[n], c.moments)
    figures.write(fig, Path(c.out))
    solved, optimal = task.solved(filled.text.numpy())
    print(json.dumps({"solved": solved.tolist(), "optimal": optimal.tolist()}))
    return 0


if __name__ == "__main__":
    cli(main)
