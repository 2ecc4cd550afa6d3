"""How good sampled images are: their features' distance to those of real ones, precision and recall."""

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from common.files import replacing
from evaluate.sampling import WEIGHT_DRAWS
from heads import OutputHead
from labs.classes.sets import Images
from model import LanguageModel

NEIGHBOURS = 3  # k of the manifolds of images
BATCH = 500  # images, or rows of distances, at a time


class Seen(NamedTuple):
    """What a classifier sees in images."""

    features: np.ndarray  # (N, C), before its last layer
    guesses: np.ndarray  # (N,), the most probable class


@torch.no_grad()
def view_images(classifier: LanguageModel, pixels: np.ndarray) -> Seen:
    """What the classifier sees in pixels (N, channels, height, width), uint8. load_classifier gives the
    `classifier`: in eval mode, on the CPU."""
    head: OutputHead = classifier.head
    draws, features, guesses = head.draws(WEIGHT_DRAWS, 0), [], []
    for start in range(0, len(pixels), BATCH):
        hidden = classifier.trunk(torch.from_numpy(pixels[start : start + BATCH])).flatten(0, 1).float()
        features.append(hidden.numpy())
        guesses.append(head.log_probs(hidden, draws).argmax(1).numpy())
    return Seen(np.concatenate(features), np.concatenate(guesses))


def frechet(a: np.ndarray, b: np.ndarray) -> float:
    """The Frechet distance between Gaussians of the mean and covariance of features a (N, C) and b (M, C):
    |mu_a - mu_b|^2 + tr(S_a + S_b - 2 (S_a S_b)^(1/2)).

    The trace of the root is that of (R S_b R)^(1/2) with R = S_a^(1/2), which is symmetric.
    Source: Dowson & Landau 1982; of Inception's features it is the FID of Heusel et al. 2017.
    """
    (mean_a, cov_a), (mean_b, cov_b) = moments(a), moments(b)
    values, vectors = np.linalg.eigh(cov_a)
    root = vectors * np.sqrt(values.clip(0)) @ vectors.T
    cross = np.sqrt(np.linalg.eigvalsh(root @ cov_b @ root).clip(0)).sum()
    square = np.square(mean_a - mean_b).sum()
    return float(square + np.trace(cov_a) + np.trace(cov_b) - 2 * cross)


def moments(features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean (C,) and covariance (C, C), float64."""
    features = features.astype(np.float64)
    return features.mean(0), np.atleast_2d(np.cov(features, rowvar=False))


def precision_recall(real: np.ndarray, made: np.ndarray, k: int = NEIGHBOURS) -> tuple[float, float]:
    """(precision, recall) in per cent of features (N, C) and (M, C): the share of `made` in the manifold of
    `real`, and of `real` in that of `made`. A manifold is the union of balls around each feature that reach
    to its k-th nearest other one.

    Source: Kynkaanniemi et al. 2019, arXiv 1904.06991, eq. 1-2.
    """
    a, b = (torch.from_numpy(x.astype(np.float64)) for x in (real, made))
    return 100 * share_inside(b, a, k), 100 * share_inside(a, b, k)


def share_inside(points: torch.Tensor, of: torch.Tensor, k: int) -> float:
    """The share of `points` (M, C) in the manifold of `of` (N, C), N > k."""
    assert len(of) > k
    parts = range(0, len(of), BATCH)
    # the nearest one of each is itself
    radii = torch.cat([torch.cdist(of[i : i + BATCH], of).kthvalue(k + 1).values for i in parts])
    inside = sum(
        int((torch.cdist(points[i : i + BATCH], of) <= radii).any(1).sum())
        for i in range(0, len(points), BATCH)
    )
    return inside / len(points)


def quality_numbers(real: Seen, made: Seen, labels: np.ndarray) -> dict[str, float]:
    """The columns of `made`, images that are to be of the classes `labels` (N,), against `real` ones."""
    precision, recall = precision_recall(real.features, made.features)
    accuracy = 100 * float((made.guesses == labels).mean())
    distance = frechet(real.features, made.features)
    return {"fd": distance, "precision": precision, "recall": recall, "accuracy": accuracy}


def picture_grid(pixels: np.ndarray, rows: int, columns: int, side: int = 64) -> np.ndarray:
    """Images (rows * columns, channels, height, width), uint8, as one picture (height, width, channels), with
    a pixel between them, each pixel repeated so that an image is about `side` wide."""
    n, channels, height, width = pixels.shape
    assert n == rows * columns
    zoom = max(1, side // width)
    large = pixels.repeat(zoom, 2).repeat(zoom, 3)
    large = np.pad(large, ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=255)
    large = large.reshape(rows, columns, channels, height * zoom + 1, width * zoom + 1)
    return large.transpose(0, 3, 1, 4, 2).reshape(rows * (height * zoom + 1), -1, channels)[:-1, :-1]


def write_png(path: Path, picture: np.ndarray) -> None:
    """A picture (height, width, channels), uint8, as a PNG."""
    from matplotlib.image import imsave  # a second, and only needed here

    flat = picture[:, :, 0] if picture.shape[2] == 1 else picture
    with replacing(path) as file:
        imsave(file, flat, cmap="gray", vmin=0, vmax=255, format="png")


def halves(images: Images, count: int, seed: int = 0) -> tuple[Images, Images]:
    """Two different sets of `count` of the images each, fewer where there are not as many; the same ones each
    time."""
    order = np.random.default_rng(seed).permutation(len(images))
    count = min(count, math.floor(len(images) / 2))
    return images.at(order[:count]), images.at(order[count : 2 * count])
