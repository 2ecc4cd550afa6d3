"""Perplexity, done once for all heads: the NLL of the distribution that is sampled, every token scored exactly once."""

import math
import os
from contextlib import AbstractContextManager, nullcontext
from typing import Callable, Iterable, NamedTuple

import numpy as np
import torch

from checkpoint import Model
from heads import Weights
from metrics import Calibration


class Score(NamedTuple):
    nll: float    # sum over tokens of -log p, nats; inf if a token has probability 0
    count: int    # tokens scored
    zeros: int    # of these, how many have probability 0
    ece: float    # expected calibration error of the most probable token; nan unless asked for


def get_device(name: str) -> torch.device:
    """"auto" (a GPU if there is one), "cpu", "cuda" or "cuda:1"; under torchrun "auto" and "cuda" are the process's own GPU. ValueError if there is no such."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ValueError(f"device = {name!r}: use 'auto', 'cpu' or 'cuda'")
    if device.type == "cpu":
        return device
    index = device.index if device.index is not None else int(os.environ.get("LOCAL_RANK", 0))
    if index >= torch.cuda.device_count():
        raise ValueError(f"device = {name!r}: {torch.cuda.device_count() or 'no'} CUDA GPU is available here, this would be number {index}; use --device=cpu, or another number")
    return torch.device("cuda", index)


def get_dtype(name: str) -> torch.dtype:
    """torch.bfloat16 or torch.float32; ValueError for another name."""
    if name not in ("float32", "bfloat16"):
        raise ValueError(f"dtype = {name!r}: use 'bfloat16' or 'float32'")
    return getattr(torch, name)


def autocast(device: torch.device | str, dtype: str) -> AbstractContextManager:
    """The autocast context for "bfloat16", nothing for "float32"."""
    return torch.autocast(torch.device(device).type, torch.bfloat16) if get_dtype(dtype) == torch.bfloat16 else nullcontext()


def windows(count: int, block_size: int, stride: int) -> list[tuple[int, int]]:
    """(start, first) of each window over `count` tokens: inputs start..start+block_size-1; targets are scored from offset `first` on.

    Windows advance by `stride`; the last is moved back to end with the text, so that all are whole. Tokens 1..count-1 are scored once each.
    """
    if not 1 <= stride <= block_size:
        raise ValueError(f"stride = {stride}: must lie between 1 and block_size = {block_size}")
    out, done, last = [], 0, max(0, count - 1 - block_size)
    for start in range(0, count - 1, stride):
        start = min(start, last)
        out.append((start, done - start))
        done = min(start + block_size, count - 1)
        if start == last:
            break
    return out


@torch.no_grad()
def score(model: Model, ids: np.ndarray, stride: int = 0, draws: list[Weights] | None = None, device: torch.device | str = "cpu", dtype: str = "float32",
          batch: int = 16, calibration: bool = False, progress: Callable[[Iterable], Iterable] = iter) -> Score:
    """NLL of `ids` (T,) under the model's predictive distribution, T - 1 tokens, each scored once.

    `stride` 0 means min(512, block_size). `draws`: see OutputHead.draws. float32 log-probabilities whatever `dtype` the matrix products
    have. The model must be in eval mode. A token of probability 0 makes the NLL inf and is counted; it is never clamped.
    """
    T = model.trunk.config.block_size
    draws = draws if draws is not None else model.head.draws(1, 0)
    plan = windows(len(ids), T, stride or min(512, T))
    T = min(T, len(ids) - 1)
    nll, count, zeros, cal = 0.0, 0, 0, Calibration()
    for i in progress(range(0, len(plan), batch)):
        part = plan[i:i + batch]
        tokens = torch.from_numpy(np.stack([ids[s:s + T + 1] for s, _ in part]).astype(np.int64)).to(device)
        scored = torch.stack([torch.arange(T) >= first for _, first in part]).to(device)  # (B, T)
        with autocast(device, dtype):
            hidden = model.trunk(tokens[:, :-1])[scored]  # (N, C)
        target = tokens[:, 1:][scored]
        lp_t = torch.empty(len(target), device=device)
        with autocast(device, dtype):
            for rows, lp in model.head.log_prob_blocks(hidden, draws):
                t = target[rows]
                lp_t[rows] = lp.gather(1, t[:, None]).squeeze(1)
                if calibration:
                    top, arg = lp.max(1)
                    cal.add(top.exp().cpu().numpy(), (arg == t).cpu().numpy())
        lp_t = lp_t.double()
        zeros += int((lp_t == -math.inf).sum())
        nll -= lp_t.sum().item()
        count += len(lp_t)
    return Score(nll, count, zeros, cal.ece() if calibration else math.nan)
