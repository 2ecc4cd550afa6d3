"""Images from a checkpoint that was trained on labs/images/image_tokens.

    python labs/images/sample.py out/RUN --class 7 --cfg 2.0 --grid 8x8 --out grid.png
    python labs/images/sample.py out/RUN --grid 10x8                one class a row, as many as there are
    python labs/images/sample.py out/RUN --out codes.npy            the codes, for the decoder that made them

From left to right, a class and then its codes. --cfg is the scale of classifier-free guidance: 1 is none,
and draws from the distribution that is scored, given that a code comes and no class token. Temperature is on
log p, the "fake logits" of the GS-Softmax document, eq. 11.
"""

import sys
import time
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Literal

import numpy as np
import torch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from common.config import Draws, Dtype, Seed, cli, read
from common.device import choose_dtype, float64_device, get_device, get_dtype
from common.errors import UserError
from common.files import check_writable, replacing
from evaluate.decoding import Decoding, decoding_flags
from evaluate.sampling import weight_draws
from labs.images import Guidance
from labs.images.guidance import sample_codes, what_is_drawn
from labs.images.image_tokens.codecs import Codec
from labs.images.image_tokens.prepare import Layout
from labs.images.quality import picture_grid, write_png
from training.run import Degenerate, load_model

MOST = 100_000  # images


@dataclass(frozen=True)
class SampleImagesConfig(Decoding):
    # fmt: off
    checkpoint: str                 # the out folder of a training run, or one checkpoint in it
    class_: list[int] = field(default_factory=list)     # of the rows of the grid, in turn; empty: all classes
    cfg: Guidance = 1.0             # scale of classifier-free guidance; 1: none
    grid: str = "10x8"              # rows x columns of images
    out: str = "grid.png"           # a picture, or their codes as .npy
    seed: Seed = 1337
    samples: Draws = 8              # weight draws of a Bayesian projection, kept for the whole run
    data: str = ""                  # the prepared data folder; empty: the run's
    # machine
    which: Literal["best", "last"] = "best"  # checkpoint of the run
    device: str = "auto"            # auto, cpu, cuda, cuda:N or mps
    dtype: Dtype = "auto"           # of matrix products: float32, bfloat16, float16, or auto
    # fmt: on

    def __post_init__(self) -> None:
        self.size
        if Path(self.out).suffix not in (".png", ".npy"):
            raise UserError(f"out = {self.out!r}: give a name that ends with .png or, for codes, .npy")

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of the grid."""
        rows, _, columns = self.grid.partition("x")
        short = len(self.grid) < 16 and rows.isdecimal() and columns.isdecimal()
        if not short or not 1 <= int(rows) * int(columns) <= MOST:
            raise UserError(
                f"grid = {self.grid!r}: give rows x columns, such as 8x8, of at most {MOST} images"
            )
        return int(rows), int(columns)


def labels_of(c: SampleImagesConfig, layout: Layout) -> np.ndarray:
    """The class of each image: one a row of the grid. UserError for one that is not there."""
    unknown = [label for label in c.class_ if not 0 <= label < layout.classes]
    if unknown:
        raise UserError(f"class = {unknown[0]}: this model's classes are 0 to {layout.classes - 1}")
    rows, columns = c.size
    wanted = np.array(c.class_ or range(layout.classes))
    return np.resize(wanted, rows).repeat(columns)


def write_images(c: SampleImagesConfig, codes: np.ndarray, codec: Codec | None) -> None:
    """The picture, or the codes."""
    if codec is not None and Path(c.out).suffix == ".png":
        write_png(Path(c.out), picture_grid(codec.decode(codes), *c.size))
        return
    with replacing(Path(c.out)) as file:
        np.save(file, codes)


def main(argv: list[str]) -> int:
    c = read(SampleImagesConfig, argv, __doc__)
    check_writable(Path(c.out))
    if Path(c.out).suffix == ".png":
        import_module("matplotlib")  # said now if it is not installed, not when all is drawn
    device = get_device(c.device)
    dtype = choose_dtype(c.dtype, device)
    model, ckpt = load_model(c.checkpoint, c.which, device, get_dtype(dtype.name))
    _, layout, codec = what_is_drawn(ckpt, c.data, c.cfg != 1)
    if codec is None and Path(c.out).suffix == ".png":
        raise UserError(
            "these codes were made by another program: --out=codes.npy writes them for its decoder"
        )
    labels = labels_of(c, layout)
    print(
        f"{ckpt.path}: step {ckpt.progress.step}, head {ckpt.config.head}; guidance {c.cfg:g}, "
        f"{decoding_flags(c)}, seed {c.seed}; "
        f"{dtype.name}: {dtype.reason}",
        file=sys.stderr,
    )
    draws = weight_draws(model, ckpt.record, c.samples, c.seed, dtype.name)
    generator = torch.Generator(float64_device(device)).manual_seed(c.seed)
    began = time.perf_counter()
    try:
        codes = sample_codes(model, draws, layout, labels, c.cfg, c, generator, device, dtype.name)
    except Degenerate as e:
        raise Degenerate(e.reason, ckpt.path) from None
    write_images(c, codes, codec)
    each = len(codes) / (time.perf_counter() - began)
    print(f"{c.out}: {len(codes)} images, {each:,.1f} images/s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    cli(main)
