"""Multi-label targets: what a teacher proposed at each position of a window, and how that becomes labels.

The proposals of a corpus are stored beside its token file, one record a window, see `LabelStore`; augment.py
makes them. Source: Shamula et al. 2024, sec. 2.6 and fig. 3.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from common.config import Positive
from common.errors import UserError, reading
from common.files import read_json
from data.tokens import TokenFile
from heads import Targets


@dataclass(frozen=True)
class LabelSettings:
    """What decides the proposals (and so belongs to a store's identity)."""

    candidates: int = 50  # k: tokens proposed at a position, the teacher's most probable
    positions: float = 0.5  # m: positions of each window; a share below or at 1, a number above
    ppl_threshold: float = 0.0  # of the window up to a candidate; those above are dropped; 0: none is
    seed: int = 1337  # of the choice of positions

    def count(self, block_size: int) -> int:
        """m for windows of `block_size`. UserError for what cannot be."""
        m = round(self.positions * block_size) if self.positions <= 1 else int(self.positions)
        if not 1 <= m <= block_size <= 65536:  # places are kept in 16 bits
            raise UserError(
                f"positions = {self.positions} means {m} of block_size = {block_size}: "
                "must lie between 1 and that, at most 65536"
            )
        return m


class Proposals(NamedTuple):
    """What a teacher proposes for B windows."""

    positions: np.ndarray  # (B, m), ascending
    ids: np.ndarray  # (B, m, k), the most probable first; -1 where one was dropped
    probs: np.ndarray  # (B, m, k), float16


def choose_positions(indices: np.ndarray, block_size: int, settings: LabelSettings) -> np.ndarray:
    """The m augmented positions of the windows `indices` (B,): (B, m), a pure function of (seed, window)."""
    m = settings.count(block_size)

    def chosen(window: int) -> np.ndarray:
        rng = np.random.default_rng((settings.seed, window))
        return np.sort(rng.choice(block_size, m, replace=False))

    return np.stack([chosen(w) for w in indices.tolist()]).astype(np.uint16)


def make_targets(y: Tensor, proposals: Proposals, soft: bool, keep_true: bool = True) -> Targets:
    """Proposals -> Targets of B * T positions, K = 1 + k labels each.

    Column 0 has the true token with the value 1, the others the candidates; a candidate's value is the
    teacher's probability if `soft`, else 1. keep_true = False is the published labelling: candidates replace
    the true token, and positions that were not chosen have no positive label at all. ids are int32 and values
    float16, as the store has them: K = 51 labels are many bytes.
    """
    B, T = y.shape
    shape = (B, T, 1 + proposals.ids.shape[2])
    # in numpy: the loader's thread calls this, where torch would start a second team of threads, and slow
    # down the model's for good
    ids, truth = np.full(shape, -1, np.int32), y.numpy()
    values = np.zeros(shape, np.float16)
    ids[:, :, 0], values[:, :, 0] = truth, keep_true
    row, at, proposed = np.arange(B)[:, None], proposals.positions.astype(np.int64), proposals.ids
    value = proposals.probs if soft else np.ones_like(proposals.probs)
    true = proposed == truth[row, at][:, :, None]  # in column 0 already, for an id is in a row once
    if not keep_true:
        values[row, at, 0] = np.where(true, value, 0).max(2)
    proposed = np.where(true, -1, proposed)
    ids[row, at, 1:], values[row, at, 1:] = proposed, np.where(proposed < 0, 0, value)
    return Targets(torch.from_numpy(ids).flatten(0, 1), torch.from_numpy(values).flatten(0, 1))


# -----------------------------------------------------------------------------
# The store: one record a window, beside the token file


def record_dtype(vocab_size: int, m: int, k: int) -> np.dtype:
    """The record of one window's proposals, k at each of m positions."""
    # 65535 stands for -1 in 16 bits, which is why a vocabulary of 65536 takes 32
    id_ = "<u2" if vocab_size < 65536 else "<u4"
    return np.dtype([("positions", "<u2", (m,)), ("ids", id_, (m, k)), ("probs", "<f2", (m, k))])


class LabelStore:
    """Proposals read from a file. OSError or UserError if it is missing or damaged, or was made by another
    teacher, corpus or setting."""

    def __init__(self, path: Path, identity: dict, vocab_size: int):
        self.path, about = path, path.with_suffix(".json")
        saved = read_json(about, dict.fromkeys(("windows", "m", "k"), Positive))
        with reading(about):
            if different := [k for k in identity if saved.get(k) != identity[k]]:
                key = different[0]
                raise UserError(f"its {key} is {saved.get(key)!r}, not {identity[key]!r}")
        with reading(path), path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != saved.get("file_sha256"):
                raise UserError("it is not what was written, or no label store")
            self.records = np.memmap(path, record_dtype(vocab_size, saved["m"], saved["k"]), "r")

    def proposals(self, indices: np.ndarray, x: Tensor, y: Tensor) -> Proposals:
        r = self.records[indices]
        ids = r["ids"].astype(np.int64)
        ids[r["ids"] == np.iinfo(r["ids"].dtype).max] = -1
        return Proposals(r["positions"], ids, r["probs"])


def store_path(tokens: TokenFile, identity: dict) -> Path:
    key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]
    return tokens.path.with_name(f"{tokens.path.stem}.labels-{key}.bin")
