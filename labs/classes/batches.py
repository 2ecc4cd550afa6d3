"""Batches of images for training: a `BatchSource` of data/batches.py. A label is a token."""

import numpy as np
import torch

from data.batches import Batch, batch_indices
from heads.base import Head
from labs.classes.sets import Images


class ImageSource:
    """`batch_size` images a step, a pure function of (seed, step): an epoch shows each once, in an order of
    its own."""

    parts, on_device = 1, False

    def __init__(self, images: Images, head: Head, batch_size: int, seed: int):
        self.images, self.head, self.batch_size, self.seed = images, head, batch_size, seed

    def positions_with_loss(self, step: int) -> int:
        return self.batch_size

    def batch(self, step: int, part: int) -> Batch:
        rows = batch_indices(len(self.images), self.batch_size, step, self.seed)
        return self.of(self.images.at(rows))

    def of(self, images: Images) -> Batch:
        """These images as pixels (B, channels, height, width) and their labels' targets."""
        labels = torch.from_numpy(images.labels)[:, None]  # (B, 1): one position an image
        # heads that look at the text before a token get the image's own label: there is no other text
        return Batch(torch.from_numpy(np.ascontiguousarray(images.pixels)), self.head.targets(labels, labels))
