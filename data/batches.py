"""Training windows of a token file and their order: which tokens a step sees is a pure function of (seed, step)."""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from data.tokens import TokenFile, check_ids
from runtime.errors import UserError


class Windows:
    """Non-overlapping windows of `block_size` inputs and their next tokens; window w starts at token w * block_size.

    A fixed grid, so that labels stored by position belong to the same left context in every epoch. ValueError if there is not one window.
    """

    def __init__(self, tokens: TokenFile, block_size: int):
        self.tokens, self.ids, self.block_size = tokens, tokens.ids, block_size
        if len(self) < 1:
            raise UserError(
                f"{tokens.path} holds {len(self.ids)} tokens, fewer than one window of block_size = {block_size}: use more text or a smaller block"
            )

    def __len__(self) -> int:
        return (len(self.ids) - 1) // self.block_size

    def get(self, indices: np.ndarray) -> tuple[Tensor, Tensor]:
        """Inputs and next tokens (B, T), int64, of the windows `indices` (B,)."""
        T = self.block_size
        rows = np.stack([self.ids[w * T : w * T + T + 1] for w in indices]).astype(np.int64)
        rows = torch.from_numpy(check_ids(self.tokens, rows))
        return rows[:, :-1], rows[:, 1:]


@lru_cache(maxsize=2)
def _epoch(n: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng((seed, epoch)).permutation(n)


def batch_indices(n: int, batch_size: int, step: int, seed: int) -> np.ndarray:
    """The windows (batch_size,) of training step `step`, out of `n`: every epoch visits each once, in an order of its own."""
    number = np.arange(step * batch_size, (step + 1) * batch_size)
    return np.array([_epoch(n, seed, i // n)[i % n] for i in number.tolist()])
