"""Classifier-free guidance, of any head: on log-probabilities, the only thing that all of them have."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from common.errors import UserError
from data.open import found_path
from data.tokens import open_tokens
from evaluate.decoding import Decoding
from evaluate.sampling import generate
from heads import Weights
from labs.images.image_tokens.codecs import Codec, read_codec
from labs.images.image_tokens.prepare import Layout, layout_of
from model import LanguageModel, trunk_on_meta
from training.run import Run

AT_ONCE = 250  # images


def guide(log_p: Tensor, log_0: Tensor, scale: float) -> Tensor:
    """log of p(x | class) (p(x | class) / p(x))^(scale - 1), normalised: of log p (N, V) with the class and
    log_0 (N, V) without it. scale 1 is no guidance. For softmax the same as guidance on logits.

    A head with exact zeros: a token of probability 0 given the class keeps it. For a token of probability 0
    without the class alone the ratio is infinite. It counts as 1, so the token keeps its p(x | class) before
    the normalisation. (A true p(x) is a mean over the classes and has no such token.)
    Source: Ho & Salimans 2022, arXiv 2207.12598, eq. 6, with scale = 1 + w.
    """
    known = (log_p > -torch.inf) & (log_0 > -torch.inf)
    ratio = torch.where(known, log_p - log_0, 0.0)
    return (log_p + (scale - 1) * ratio).log_softmax(1)


def only_codes(log_p: Tensor, codes: int, scale: float) -> Tensor:
    """What codes are drawn from: the tokens behind the first `codes` are classes, which no image has inside.

    log_p (B, V): of the images with their class and, if the scale is not 1, behind them of the same without
    it. A row that gives no code a probability becomes nan, which whoever samples finds.
    """
    log_p = torch.cat((log_p[:, :codes], log_p.new_full((len(log_p), log_p.shape[1] - codes), -torch.inf)), 1)
    if scale == 1:
        return log_p.log_softmax(1)
    with_class, without = log_p.chunk(2)
    return guide(with_class, without, scale)


def sample_codes(
    model: LanguageModel,
    draws: list[Weights],
    layout: Layout,
    labels: np.ndarray,
    scale: float,
    decoding: Decoding,
    generator: torch.Generator,
    device: torch.device | str = "cpu",
    dtype: str = "float32",
    progress: Callable = iter,
) -> np.ndarray:
    """Codes (N, places) of new images of the classes `labels` (N,), from left to right.

    `decoding` is of what the guidance gives. Errors: see `generate`.
    """
    places = model.trunk.config.block_size - 1
    out = []
    for start in progress(range(0, len(labels), AT_ONCE)):
        begun = torch.from_numpy(layout.token(labels[start : start + AT_ONCE]))[:, None].to(device)
        if scale != 1:
            begun = torch.cat((begun, torch.full_like(begun, layout.none)))
        blend = partial(only_codes, codes=layout.codes, scale=scale)
        tokens = generate(model, begun, places, draws, decoding, generator, dtype=dtype, blend=blend)
        out.append(torch.stack([token for token, _ in tokens], 1).cpu().numpy())
    return np.concatenate(out)


# -----------------------------------------------------------------------------
# Runs


class Drawn(NamedTuple):
    """What a run's tokens mean."""

    folder: Path  # of the token files
    layout: Layout
    codec: Codec | None  # None: another program's


def what_is_drawn(ckpt: Run, data: str = "", guided: bool = False) -> Drawn:
    """UserError if these tokens are no images', or if a model cannot be `guided` because no token of its
    training stands for "no class"."""
    c = ckpt.record
    if c.get("dataset") != "image_tokens":
        raise UserError(f"{ckpt.path} was trained on {c.get('dataset')}, not on image tokens")
    if not trunk_on_meta(c).forwards:
        raise UserError(f"{ckpt.path} has trunk = {c['trunk']!r}, and no next code to guide: leave it out")
    folder = Path(data) if data else found_path(ckpt)
    info = open_tokens(folder / "train.bin").info
    if info["sha256"] != c["data_sha256"]:  # another codec's codes are the same words
        raise UserError(f"{folder} holds other codes than {ckpt.path} was trained on: give --data=FOLDER")
    if guided and not info.get("dropped"):
        raise UserError(f"{ckpt.path} always saw its class, so it cannot be guided: give --cfg=1")
    codec = read_codec(folder)[0] if (folder / "codec.json").is_file() else None
    return Drawn(folder, layout_of(info["source"]), codec)
