"""Multi-label targets: what a teacher proposed at each position of a window, and how that becomes labels.

Labels are prepared data: augment.py writes them into a folder beside the token file, labels-KEY/, one record
a window in labels.bin, and a manifest that says what they were made of. Training reads them.
Source: Shamula et al. 2024, sec. 2.6 and fig. 3.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from common import manifest
from common.errors import UserError, checking, reading
from config.defaults import TrainConfig
from data.batches import Windows
from data.tokens import TokenFile
from heads import Targets, named_head
from model import trunk_on_meta

FILE = "labels.bin"
# keys of a configuration that the proposals depend on, beside text, block, teacher and precision
SETTINGS = ("candidates", "positions", "ppl_threshold", "seed", "proposals")


def count_positions(c: TrainConfig) -> int:
    """m, how many positions of a window are augmented. UserError if the window has not so many."""
    m = round(c.positions * c.block_size) if c.positions <= 1 else int(c.positions)
    if not 1 <= m <= c.block_size <= 65536:  # the store keeps a position in 16 bits
        limits = f"must lie between 1 and block_size = {c.block_size}, at most 65536"
        raise UserError(f"positions = {c.positions} means {m} of a window: {limits}")
    return m


def choose_positions(indices: np.ndarray, c: TrainConfig) -> np.ndarray:
    """The m augmented positions of the windows `indices` (B,): (B, m), a pure function of (seed, window)."""
    m, rngs = count_positions(c), [np.random.default_rng((c.seed, window)) for window in indices.tolist()]
    chosen = [np.sort(rng.choice(c.block_size, m, replace=False)) for rng in rngs]
    return np.stack(chosen).astype(np.uint16)


class Proposals(NamedTuple):
    """What a teacher proposes for B windows."""

    positions: np.ndarray  # (B, m), ascending
    ids: np.ndarray  # (B, m, k), the largest value first; -1 where one was dropped
    values: np.ndarray  # (B, m, k), float16: the teacher's probability, or the weight of a drawn one


def make_targets(y: Tensor, proposals: Proposals, soft: bool, keep_true: bool = True) -> Targets:
    """Proposals for windows with next tokens y (B, T) -> Targets of B * T positions, K = 1 + k labels each.

    Column 0 has the true token with the value 1, the others the candidates; a candidate's value is the
    proposal's if `soft`, else 1. keep_true = False is the published labelling: the true token keeps only the
    value that the teacher proposes for it, and positions that were not chosen have no positive label at all.
    ids are int32 and values float16, since K = 51 labels are many bytes.
    """
    B, T = y.shape
    shape = (B, T, 1 + proposals.ids.shape[2])
    # in numpy: the loader's thread calls this, where torch would start a second team of threads, and slow
    # down the model's for good
    ids, truth = np.full(shape, -1, np.int32), y.numpy()
    values = np.zeros(shape, np.float16)
    ids[:, :, 0], values[:, :, 0] = truth, keep_true
    row, at, proposed = np.arange(B)[:, None], proposals.positions.astype(np.int64), proposals.ids
    value = proposals.values if soft else np.ones_like(proposals.values)
    true = proposed == truth[row, at][:, :, None]  # in column 0 already, for an id is in a row once
    if not keep_true:
        values[row, at, 0] = np.where(true, value, 0).max(2)
    proposed = np.where(true, -1, proposed)
    ids[row, at, 1:], values[row, at, 1:] = proposed, np.where(proposed < 0, 0, value)
    return Targets(torch.from_numpy(ids).flatten(0, 1), torch.from_numpy(values).flatten(0, 1))


# -----------------------------------------------------------------------------
# What a store was made of


def fingerprint(record: dict[str, Any], weights: Mapping[str, Tensor]) -> str:
    """SHA-256 of what decides a model's probabilities: its weights, and its trunk, head and gain in the
    `record` of its run. UserError for a head that does not exist today."""
    with checking():
        head = named_head(record["head"], record["vocab_size"], record["head_args"]).eval()
    gain, trunk = record.get("gain", 1.0), record.get("trunk_args")
    settings = sorted((k, v) for k, v in vars(head).items() if isinstance(v, (int, float, str)))
    about = (trunk_on_meta(record).config, type(head).__name__, settings)
    beside = f" gain {gain}" * (gain != 1) + f" trunk {json.dumps(trunk, sort_keys=True)}" * bool(trunk)
    digest = hashlib.sha256((repr(about) + beside).encode())
    for name, w in sorted(weights.items()):
        digest.update(name.encode())
        digest.update(w.float().contiguous().numpy().data)
    return digest.hexdigest()


def identity(tokens: TokenFile, c: TrainConfig, teacher: str) -> dict[str, Any]:
    """Everything the proposals depend on, and how many there are. Equal identities, equal labels. `teacher`:
    its fingerprint."""
    settings = {key: getattr(c, key) for key in SETTINGS}
    if c.proposals == "top":  # stores older than this key keep their identity
        del settings["proposals"]
    return {
        "corpus": tokens.info["sha256"],
        "tokens": len(tokens.ids),
        "tokenizer": tokens.info["fingerprint"],
        "block_size": c.block_size,
        "teacher": teacher,
        "dtype": c.dtype,
        **settings,
        "windows": len(Windows(tokens, c.block_size)),
        "m": count_positions(c),
        "k": min(c.candidates, tokens.info["vocab_size"]),
    }


def store_folder(tokens: TokenFile, made_of: dict[str, Any]) -> Path:
    """Where the labels of this identity lie."""
    key = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:12]
    return tokens.path.with_name(f"labels-{key}")


def record_dtype(vocab_size: int, m: int, k: int) -> np.dtype:
    """The record of one window's proposals, k at each of m positions."""
    # 65535 stands for -1 in 16 bits, which is why a vocabulary of 65536 takes 32
    id_ = "<u2" if vocab_size < 65536 else "<u4"
    return np.dtype([("positions", "<u2", (m,)), ("ids", id_, (m, k)), ("values", "<f2", (m, k))])


# -----------------------------------------------------------------------------
# Labels of a training


class LabelStore:
    """The labels in a folder that augment.py wrote: the true token's, and those of a teacher's proposals.

    OSError or UserError naming the file if one is missing or damaged, or was made of something else than
    `made_of`. `soft`, `keep_true`: see make_targets.
    """

    def __init__(
        self, folder: Path, made_of: dict, vocab_size: int, soft: bool = True, keep_true: bool = True
    ):
        self.folder, self.soft, self.keep_true = folder, soft, keep_true
        self.made_of = manifest.read_manifest(folder)
        with reading(folder / manifest.NAME):
            for key, value in made_of.items():
                if self.made_of.get(key) != value:
                    raise UserError(f"its {key} is {self.made_of.get(key)!r}, not {value!r}")
        path = manifest.check_file(folder, FILE, self.made_of)
        self.records = np.memmap(path, record_dtype(vocab_size, made_of["m"], made_of["k"]), "r")

    def targets(self, indices: np.ndarray, x: Tensor, y: Tensor) -> Targets:
        """Targets of the windows `indices` (B,) with inputs x and next tokens y (B, T)."""
        r = self.records[indices]
        ids = r["ids"].astype(np.int64)
        ids[r["ids"] == np.iinfo(r["ids"].dtype).max] = -1
        return make_targets(y, Proposals(r["positions"], ids, r["values"]), self.soft, self.keep_true)
