"""Tokenizers of images: pixels <-> codes on a grid, in raster order.

    patches    each patch of P x P pixels is the nearest of K patches, found by k-means (scikit-learn)
    vq         a small autoencoder whose hidden vectors, one for P x P pixels, are the nearest of K vectors

A code stands for P x P pixels in both. They are kept as codec.safetensors and codec.json beside the token
files, so that what a model samples can be seen.
"""

import hashlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save
from torch import Tensor, nn

from common.errors import UserError, reading
from common.files import read_json, replacing, write_json
from common.log import progress_bar

AT_ONCE = 500  # images
FITTED = 200_000  # patches at most that k-means is fitted to


class Codec(nn.Module):
    """Images of `shape` (channels, height, width) <-> codes 0 .. K - 1, each for `patch` x `patch` pixels.

    UserError if there is no such grid of codes.
    """

    kind: str
    codebook: Tensor  # (K, D)

    def __init__(self, shape: tuple[int, int, int], patch: int, codes: int, dim: int):
        super().__init__()
        self.shape, self.patch, self.codes = shape, patch, codes
        self.grid = grid_of(shape, patch)
        self.register_buffer("codebook", torch.zeros(codes, dim))

    def vectors(self, x: Tensor) -> Tensor:
        """Images (N, channels, height, width), 0 to 1 -> what is quantised, (N, places, D)."""
        raise NotImplementedError

    def images(self, q: Tensor) -> Tensor:
        """The inverse: vectors (N, places, D) -> images (N, channels, height, width)."""
        raise NotImplementedError

    def nearest(self, z: Tensor) -> Tensor:
        """Codes (...) of the nearest vectors of the codebook to z (..., D)."""
        flat = z.flatten(0, -2)
        distance = self.codebook.square().sum(1) - 2 * flat @ self.codebook.T  # but for |z|^2
        return distance.argmin(1).view(z.shape[:-1])

    @torch.no_grad()
    def encode(self, pixels: np.ndarray) -> np.ndarray:
        """Pixels (N, channels, height, width), uint8 -> codes (N, places), int64."""
        parts = (torch.from_numpy(pixels[i : i + AT_ONCE]) for i in range(0, len(pixels), AT_ONCE))
        return np.concatenate([self.nearest(self.vectors(x.float() / 255)).numpy() for x in parts])

    @torch.no_grad()
    def decode(self, codes: np.ndarray) -> np.ndarray:
        """Codes (N, places) -> pixels (N, channels, height, width), uint8."""
        parts = (torch.from_numpy(codes[i : i + AT_ONCE]) for i in range(0, len(codes), AT_ONCE))
        made = torch.cat([self.images(self.codebook[c]) for c in parts])
        return (made.clamp(0, 1) * 255).round().to(torch.uint8).numpy()


def grid_of(shape: tuple[int, int, int], patch: int) -> tuple[int, int]:
    """Rows and columns of codes. UserError if the patches do not fill the image."""
    _, height, width = shape
    if height % patch or width % patch:
        raise UserError(f"patch = {patch}: images of {height} x {width} are not made of such patches")
    return height // patch, width // patch


class Patches(Codec):
    """A patch of pixels is its own vector."""

    kind = "patches"

    def __init__(self, shape: tuple[int, int, int], patch: int, codes: int):
        super().__init__(shape, patch, codes, shape[0] * patch * patch)

    def vectors(self, x: Tensor) -> Tensor:
        return F.unfold(x, self.patch, stride=self.patch).transpose(1, 2)

    def images(self, q: Tensor) -> Tensor:
        return F.fold(q.transpose(1, 2), self.shape[1:], self.patch, stride=self.patch)

    def fit(self, pixels: np.ndarray, seed: int, steps: int) -> None:
        """k-means of patches drawn from `pixels`; `steps` is the other tokenizer's."""
        from sklearn.cluster import MiniBatchKMeans  # a second, and only needed here

        places, rng = math.prod(self.grid), np.random.default_rng(seed)
        few = rng.permutation(len(pixels))[: FITTED // places + 1]
        patches = self.vectors(torch.from_numpy(pixels[np.sort(few)]).float() / 255).flatten(0, 1).numpy()
        means = MiniBatchKMeans(self.codes, random_state=seed, batch_size=4096, n_init=3)
        self.codebook.copy_(torch.from_numpy(means.fit(patches).cluster_centers_))


class Residual(nn.Module):
    """x + f(x) with two convolutions."""

    def __init__(self, width: int):
        super().__init__()
        first, second = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 1)
        self.f = nn.Sequential(nn.ReLU(), first, nn.ReLU(), second)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.f(x)


class VQ(Codec):
    """A vector-quantised autoencoder: strided convolutions to vectors, and transposed ones back.

    The codebook is a moving average of the vectors that are quantised to it, which go through as they are
    backwards (straight-through), with a commitment loss of weight .25.
    Source: van den Oord, Vinyals, Kavukcuoglu 2017, arXiv 1711.00937, eq. 1-3 and appendix A.1.
    """

    kind = "vq"
    WIDTH, DIM = 64, 16  # channels of the convolutions, and of a vector
    BATCH, RATE, DECAY, COMMITMENT = 64, 1e-3, 0.99, 0.25
    UNUSED = 0.02  # a vector with less than this share of its due is replaced by one of the batch

    def __init__(self, shape: tuple[int, int, int], patch: int, codes: int):
        super().__init__(shape, patch, codes, self.DIM)
        halvings = patch.bit_length() - 1
        if patch != 2**halvings or patch < 2:
            raise UserError(f"patch = {patch}: vq halves images, so it must be 2, 4, 8, ...")
        channels, width = shape[0], self.WIDTH
        down: list[nn.Module] = []
        up: list[nn.Module] = []
        for i in range(halvings):
            down += [nn.Conv2d(width if i else channels, width, 4, 2, 1), nn.ReLU()]
            last = i == halvings - 1
            up += [nn.ReLU(), nn.ConvTranspose2d(width, channels if last else width, 4, 2, 1)]
        first, back = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(self.DIM, width, 3, padding=1)
        self.encoder = nn.Sequential(*down, first, Residual(width), nn.Conv2d(width, self.DIM, 1))
        self.decoder = nn.Sequential(back, Residual(width), *up)

    def vectors(self, x: Tensor) -> Tensor:
        return self.encoder(2 * x - 1).flatten(2).transpose(1, 2)

    def images(self, q: Tensor) -> Tensor:
        return (self.decoder(q.transpose(1, 2).unflatten(2, self.grid)) + 1) / 2

    def fit(self, pixels: np.ndarray, seed: int, steps: int) -> None:
        """Trains it, in float32 on the CPU: the same codes again from the same seed on the same machine."""
        rng = np.random.default_rng(seed)
        optimizer = torch.optim.Adam(self.parameters(), self.RATE)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        count, total = torch.ones(self.codes), torch.zeros_like(self.codebook)
        bar = progress_bar(range(steps), desc="vq")
        for step in bar:
            x = torch.from_numpy(pixels[rng.integers(len(pixels), size=self.BATCH)]).float() / 255
            z = self.vectors(x)
            seen = z.detach().flatten(0, 1)
            if step == 0:
                total = some_vectors(seen, self.codes, rng)
                self.codebook.copy_(total)
            code = self.nearest(z.detach())
            q = self.codebook[code]
            rebuilt = F.mse_loss(self.images(z + (q - z).detach()), x)
            loss = rebuilt + self.COMMITMENT * F.mse_loss(z, q)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            self._move(seen, code.flatten(), count, total, rng)
            bar.set_postfix_str(f"squared error {rebuilt.item():.4f}", refresh=False)

    def _move(self, z: Tensor, code: Tensor, count: Tensor, total: Tensor, rng: np.random.Generator) -> None:
        """The codebook's moving average over vectors z (N, D) with codes (N,): `count` (K,) of them and their
        `total` (K, D), in place."""
        count.lerp_(torch.bincount(code, minlength=self.codes).float(), 1 - self.DECAY)
        total.lerp_(torch.zeros_like(total).index_add_(0, code, z), 1 - self.DECAY)
        unused = count < self.UNUSED * len(z) / self.codes
        count[unused] = 1.0
        total[unused] = some_vectors(z, int(unused.sum()), rng)
        self.codebook.copy_(total / count[:, None])


def some_vectors(z: Tensor, n: int, rng: np.random.Generator) -> Tensor:
    """`n` of the vectors z (N, D)."""
    return z[torch.from_numpy(rng.integers(len(z), size=n))]


CODECS: dict[str, Callable[..., Patches | VQ]] = {"patches": Patches, "vq": VQ}


# -----------------------------------------------------------------------------
# Files


def make_codec(kind: str, shape: tuple[int, int, int], patch: int, codes: int, seed: int) -> Patches | VQ:
    """A new one, whose weights are a function of the seed. UserError if there is no such."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return CODECS[kind](shape, patch, codes).requires_grad_(True)


def save_codec(codec: Codec, folder: Path, record: dict[str, Any]) -> None:
    """Writes codec.safetensors, then codec.json, which says what it is, and `record`."""
    weights = save({k: v.contiguous() for k, v in codec.state_dict().items()})
    with replacing(folder / "codec.safetensors") as file:
        file.write(weights)
    made = {"kind": codec.kind, "shape": list(codec.shape), "patch": codec.patch, "codes": codec.codes}
    write_json(folder / "codec.json", made | {"sha256": hashlib.sha256(weights).hexdigest()} | record)


def read_codec(folder: Path) -> tuple[Codec, dict[str, Any]]:
    """The codec of a prepared folder, and its record. FileNotFoundError if there is none, UserError if it is
    damaged."""
    path = folder / "codec.json"
    with reading(path):
        record = read_json(path)
        digest = hashlib.sha256((folder / "codec.safetensors").read_bytes()).hexdigest()
        if digest != record["sha256"]:
            raise UserError(f"{folder / 'codec.safetensors'} is not what {path} describes")
        channels, height, width = record["shape"]
        codec = make_codec(record["kind"], (channels, height, width), record["patch"], record["codes"], 0)
        codec.load_state_dict(load_file(folder / "codec.safetensors"))
    return codec.eval().requires_grad_(False), record
