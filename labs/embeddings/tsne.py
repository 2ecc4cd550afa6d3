"""Where sequences of each row lie beside human ones: t-SNE of their embeddings, and a test of neighbours."""

import math
from collections.abc import Mapping, Sized
from pathlib import Path

import numpy as np
import torch

from common.errors import UserError
from labs.scorers.scorer import Scorer
from tables import figures

HUMAN = "human"
COLUMNS = 4
LEAST = 10  # sequences of a row

CAVEAT = (
    "t-SNE keeps who is near whom. It keeps no distances, sizes or densities, makes clusters of noise, and "
    "is another picture for another seed."
)


@torch.no_grad()
def embed(scorer: Scorer, texts: list[str]) -> np.ndarray:
    """(n, C) float32: of each text, by itself, the mean hidden state over the tokens that fit the scorer."""
    rows = []
    for text in texts:
        ids = scorer.encode(text)[: scorer.context]
        rows.append(scorer.hidden(torch.tensor(ids)).float().mean(0).cpu().numpy())
    return np.stack(rows)


def neighbour_accuracy(a: np.ndarray, b: np.ndarray) -> float:
    """How often the nearest neighbour of one of `a` (n, C) and `b` (n, C), itself left out, is of the same
    set: .5 if they are alike, 1 if they are apart.

    Below .5 if one is a copy of the other. Source: the leave-one-out 1-NN test, Lopez-Paz & Oquab 2017,
    arXiv 1610.06545.
    """
    from sklearn.neighbors import NearestNeighbors

    both, of_a = np.concatenate((a, b)), np.arange(len(a) + len(b)) < len(a)
    nearest = NearestNeighbors(n_neighbors=1).fit(both).kneighbors(return_distance=False)[:, 0]
    return float((of_a == of_a[nearest]).mean())


def plane(embeddings: np.ndarray, seed: int) -> np.ndarray:
    """(n, 2): t-SNE of all (n, C) together. van der Maaten & Hinton 2008."""
    from sklearn.manifold import TSNE

    return TSNE(perplexity=min(30, (len(embeddings) - 1) / 3), init="pca", random_state=seed).fit_transform(
        embeddings
    )


def check_rows(rows: Mapping[str, Sized], real: str = HUMAN) -> None:
    """UserError unless there are `real` sequences and others, LEAST at least of each."""
    if real not in rows or len(rows) < 2 or min(map(len, rows.values())) < LEAST:
        lengths = {name: len(row) for name, row in rows.items()}
        raise UserError(f"rows = {lengths}: needs {real!r} and another, of at least {LEAST} sequences each")


def draw_tsne(
    rows: dict[str, np.ndarray], path: Path, seed: int = 0, real: str = HUMAN, form: str = "png"
) -> list[Path]:
    """PATH.png of embeddings (n, C) by row, one of them `real`: a panel a row, real sequences
    green, the row's blue, all others grey, as in sigma-GPTs (arXiv 2404.09562), figure 4. Each row
    shows as many sequences as the shortest one has: its first."""
    check_rows(rows, real)
    n = min(map(len, rows.values()))
    rows = {name: e[:n] for name, e in rows.items()}
    at = dict(zip(rows, plane(np.concatenate(list(rows.values())), seed).reshape(len(rows), n, 2)))
    shown = [name for name in rows if name != real]
    plt, columns = figures.pyplot(), min(COLUMNS, len(shown))
    lines = math.ceil(len(shown) / columns)
    size = (2.4 * columns, 2.6 * lines + 0.4)
    fig, axes = plt.subplots(lines, columns, figsize=size, squeeze=False, layout="constrained")
    for ax in axes.flat[len(shown) :]:
        ax.remove()
    for ax, name in zip(axes.flat, shown):
        others = np.concatenate(
            [xy for other, xy in at.items() if other not in (name, real)] or [at[name][:0]]
        )
        for xy, colour in ((others, "0.85"), (at[real], "tab:green"), (at[name], "tab:blue")):
            ax.plot(*xy.T, ".", color=colour, ms=4, alpha=0.7, mew=0, rasterized=True)
        ax.set_title(f"{name}\n1-NN accuracy {neighbour_accuracy(rows[real], rows[name]):.2f}")
        ax.set_xticks([])
        ax.set_yticks([])
    fig.supxlabel(f"blue: the row, green: {real}, grey: other rows; {n} of each. {CAVEAT}", fontsize=6)
    return figures.write(fig, path, form)
