"""The images measure: how good the images are that models of labs/images/image_tokens draw.

    python train.py config/mnist_brief.py --source=DIR                  the classifier, once
    python table.py --measure=images out/*-mnist_tokens-* --classifier=out/mnist_brief --out=results/images

bits         -log2 p of the held-out codes given the class: a code, and a pixel of the image
FD           Frechet distance between features of sampled and held-out images (ours: before the last layer of
             the classifier, so no FID, and only rows of one classifier can be compared)
precision    per cent of sampled images within the manifold of held-out ones, recall the reverse
             (Kynkaanniemi et al. 2019, 3 neighbours)
accuracy     per cent whose class the classifier finds to be the one asked for

for each scale of classifier-free guidance. The rows below are other held-out images, the same through the
tokenizer, and uniform noise of codes. Means over the seeds of a row, with 95% intervals by Student's t.
OUT.samples/RUN.png: images by class (down) and guidance (four each).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch

from common.config import Draws, Dtype, Field, Natural, NonNegative, Seed
from common.device import choose_dtype, float64_device, get_device, get_dtype
from common.errors import UserError
from common.log import progress_bar
from data.tokens import open_tokens
from evaluate.decoding import Decoding
from evaluate.sampling import weight_draws
from evaluate.scoring import in_sequences, score
from evaluate.settings import run_seed
from labs.classes.sets import ImageSet
from labs.classes.task import CLASSES
from labs.images import Guidance
from labs.images.guidance import sample_codes, what_is_drawn
from labs.images.image_tokens.prepare import FILES, read_source
from labs.images.quality import NEIGHBOURS, halves, picture_grid, quality_numbers, view_images, write_png
from labs.orders.asking import Asker
from model import LanguageModel
from tables.checks import check_comparable, check_planned
from tables.measure import Measure, NamedRun, Session, open_runs
from tables.store import Row
from tables.summary import grouped
from tables.views import View, mean, problems, samples_file, table
from training.checkpoint import find_checkpoint, weights_digest
from training.run import Run, load_model

TITLES = {"fd": "FD (our CNN)", "precision": "precision", "recall": "recall", "accuracy": "accuracy"}
Sampled = Annotated[int, Field(gt=NEIGHBOURS)]
SHOWN = (10, 4)  # classes, and images of each at a point, in the picture of a run


@dataclass
class ImagesConfig:
    # fmt: off
    checkpoints: list[str]          # [NAME=]RUN ...: out folders of training runs, or checkpoints in them
    classifier: str = ""            # the out folder of a run of train.py on the same images
    split: Literal["validation", "test"] = "test"
    images: Sampled = 2000          # sampled at each point, and real ones they are compared with
    cfg: list[Guidance] = field(default_factory=lambda: [1.0, 2.0, 3.0, 4.0])  # scales of guidance; 1: none
    temperatures: list[NonNegative] = field(default_factory=lambda: [1.0])  # of log p, after the guidance
    top_k: list[Natural] = field(default_factory=lambda: [0])   # likewise; 0: all
    samples: Draws = 8              # weight draws of Bayesian rows
    seed: Seed = 1337               # of what is sampled
    data: str = ""                  # the prepared data folder; empty: the one of the first run
    device: str = "auto"            # auto, cpu, cuda, cuda:N or mps
    dtype: Dtype = "float32"        # of matrix products: float32, bfloat16, float16, or auto
    out: str = ""                   # writes OUT.jsonl, OUT.md and OUT.samples/RUN.png
    #                                 rows of other runs, and of unchanged ones, in it are kept
    # fmt: on

    def __post_init__(self) -> None:
        if not self.classifier:
            raise UserError(
                "classifier = '': its features are what images are compared by; train one on the same "
                "images (python train.py config/mnist_brief.py) and give --classifier=out/mnist_brief"
            )
        if not self.points:
            raise UserError("cfg, temperatures and top_k: give at least one value of each")

    @property
    def points(self) -> list["Point"]:
        return [Point(*p) for p in product(self.cfg, self.temperatures, self.top_k)]


class Point(NamedTuple):
    """How images are drawn."""

    cfg: float
    temperature: float
    top_k: int

    def __str__(self) -> str:
        hot = f", temperature {self.temperature:g}" * (self.temperature != 1)
        return f"{self.cfg:g}{hot}" + f", top {self.top_k}" * (self.top_k > 0)


# -----------------------------------------------------------------------------
# The classifier


def open_classifier(path: str, images: str) -> Run:
    """The best checkpoint of a classifier, without its weights. UserError if it is none or of another set of
    images."""
    ckpt = Run(path)
    if ckpt.config.tokenizer != CLASSES or ckpt.config.dataset != images:
        raise other_images(path, images)
    return ckpt


def other_images(path: str, images: str) -> UserError:
    return UserError(f"--classifier={path} was not trained on these images of {images}: give one that was")


def load_classifier(path: str, images: ImageSet) -> LanguageModel:
    """The model of `open_classifier`, on the CPU. UserError if its images are not these."""
    ckpt = open_classifier(path, images.name)
    shape = ckpt.config.trunk_args.get("shape")
    if ckpt.config.data_sha256 != images.sha256 or shape != list(images.kind.shape):
        raise other_images(path, images.name)
    return load_model(path)[0]


# -----------------------------------------------------------------------------
# The measure


class ImagesSession(Session):
    """The runs that are asked for, and the images that theirs are compared with."""

    reference_names = ("other held-out images", "the same through the tokenizer", "uniform noise of codes")

    def __init__(self, c: ImagesConfig):
        """UserError for all that cannot be measured, before any work."""
        self.c, self.device = c, get_device(c.device)
        self.dtype = choose_dtype(c.dtype, self.device).name
        runs = open_runs(c.checkpoints)
        for entry in runs:
            what_is_drawn(entry.ckpt, c.data, any(scale != 1 for scale in c.cfg))
        check_comparable(runs)
        self.subjects: Sequence[NamedRun] = runs
        folder, self.layout, codec = what_is_drawn(runs[0].ckpt, c.data)
        if codec is None:
            raise UserError(f"{folder} holds another program's codes: --measure=orders scores them")
        self.codec, self.data = codec, open_tokens(folder / f"{c.split}.bin")
        images = read_source(self.data.info["source"]).open()
        self.classifier = load_classifier(c.classifier, images)
        real, self.others = halves(getattr(images, c.split), c.images)  # as many, with nothing in common
        if len(real) <= NEIGHBOURS:
            raise UserError(f"the {c.split} split has too few images: {len(real)} in each half of it")
        self.settings = images_settings(c) | {"dtype": self.dtype, "corpus": self.data.info["sha256"]}
        self.real, self.labels = view_images(self.classifier, real.pixels), real.labels

    def references(self) -> list[Row]:
        codec, rng = self.codec, np.random.default_rng(self.c.seed)
        noise = rng.integers(codec.codes, size=(len(self.labels), math.prod(codec.grid)))
        through = codec.decode(codec.encode(self.others.pixels))
        images = self.others.pixels, through, codec.decode(noise)
        labels = self.others.labels, self.others.labels, self.labels
        columns = map(self._quality, images, labels)
        rows = [{"name": name, **numbers} for name, numbers in zip(self.reference_names, columns)]
        classifier = Path(self.c.classifier).name
        rows[0]["about"] = {"images": len(self.labels), "classifier": classifier, "codes": self.layout.codes}
        return rows

    def numbers(self, subject: NamedRun) -> Row:
        """All that is measured of one run. A picture of its images goes to OUT.samples."""
        c = self.c
        model, ckpt = load_model(subject.path, device=self.device, dtype=get_dtype(self.dtype))
        draws = weight_draws(model, ckpt.record, c.samples, c.seed, self.dtype)
        text = in_sequences(self.data.ids, model.trunk.config.block_size, self.data.given)
        s = score(model, text, 0, draws, self.device, self.dtype)
        per_pixel = math.prod(self.codec.grid) / math.prod(self.codec.shape[1:])
        row: Row = {}
        for end, nll in (("", s.nll), ("_eps", s.eps_nll)):
            bits = nll / s.tokens / math.log(2)
            row |= {f"bits_code{end}": bits, f"bits_pixel{end}": bits * per_pixel}
        row |= {"zeros": s.zeros, "points": []}
        strips = []
        for point in c.points:
            asker = Asker(model, draws, self.device, self.dtype)
            pixels = self._draw_images(point, asker, run_seed(c.seed, ckpt.record), subject.name)
            row["points"].append({**point._asdict(), **self._quality(pixels, self.labels)})
            strips.append(strip(pixels, self.labels))
        if c.out:
            picture = samples_file(Path(c.out), subject.name).with_suffix(".png")
            write_png(picture, np.concatenate(strips, 1))
        return row

    def _quality(self, pixels: np.ndarray, labels: np.ndarray) -> dict[str, float]:
        return quality_numbers(self.real, view_images(self.classifier, pixels), labels)

    def _draw_images(self, point: "Point", asker: Asker, seed: int, name: str) -> np.ndarray:
        """Pixels of images of the classes `labels`, the same ones again for the same run and settings."""

        def bar(batches: Any) -> Any:
            return progress_bar(batches, desc=f"{name}: guidance {point}", leave=False)

        codes = sample_codes(
            asker.model,
            asker.draws,
            self.layout,
            self.labels,
            point.cfg,
            Decoding(temperature=point.temperature, top_k=point.top_k),
            torch.Generator(float64_device(asker.device)).manual_seed(seed),
            asker.device,
            asker.dtype,
            bar,
        )
        return self.codec.decode(codes)


def strip(pixels: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """A picture of a few images of each class, a row a class."""
    classes, each = np.unique(labels)[: SHOWN[0]], SHOWN[1]
    chosen = np.concatenate([np.resize(np.flatnonzero(labels == i), each) for i in classes])
    picture = picture_grid(pixels[chosen], len(classes), each)
    return np.pad(picture, ((0, 0), (0, 8), (0, 0)), constant_values=255)


def images_settings(c: ImagesConfig) -> dict[str, Any]:
    """What two rows must share to stand in one table, as far as the flags say it."""
    keys = ("split", "images", "cfg", "temperatures", "top_k", "samples", "seed")
    known = {key: getattr(c, key) for key in keys} | ({"dtype": c.dtype} if c.dtype != "auto" else {})
    return known | {"classifier": weights_digest(find_checkpoint(c.classifier))}


class ImagesMeasure(Measure):
    name, config, session = "images", ImagesConfig, ImagesSession

    def check(self, c: ImagesConfig, wanted: Sequence[dict[str, Any]]) -> dict[str, Any]:
        for run in wanted:
            if run["dataset"] != "image_tokens":
                raise UserError(f"dataset = {run['dataset']!r}: --measure=images is of image tokens alone")
        check_planned(wanted)
        for source in (read_source(run["source"]) for run in wanted):
            if source.images == FILES or (not source.settings.drop and {*c.cfg} != {1}):
                raise UserError(f"source = {str(source)!r}: no images to judge, or none to guide by {c.cfg}")
            open_classifier(c.classifier, source.images)
        return images_settings(c)

    def view(self, rows: list[Row]) -> View:
        """The held-out codes, then what is drawn at each point: a line for each row."""
        groups = grouped(r for r in rows if "problem" not in r)
        keys = ("bits_code", "bits_pixel", "bits_code_eps")
        held_out = [
            [name, str(len(runs)), *(mean([r[k] for r in runs]) for k in keys)]
            for name, runs in groups.items()
        ]
        drawn = []
        for name, runs in groups.items():
            for same in zip(*(r["points"] for r in runs)):
                point = str(Point(*(same[0][k] for k in Point._fields)))
                drawn.append([name, point, *(mean([p[k] for p in same]) for k in TITLES)])
        references = [r for r in rows if r.get("reference")]
        drawn += [[r["name"], "", *(f"{r[k]:.4g}" for k in TITLES)] for r in references]
        head = ["", "runs", "bits a code", "bits a pixel", "bits a code, eps"]
        tables = [table(head, held_out), table(["", "guidance", *TITLES.values()], drawn)]
        return View([*tables, explained(rows), problems(rows)])


def explained(rows: list[Row]) -> str:
    """The line under the tables."""
    about = next((r["about"] for r in rows if "about" in r), None)
    if about is None:
        return ""
    return (
        f"{about['images']} images a point, against as many of the {rows[0]['settings']['split']} split, "
        f"with the features of {about['classifier']}; {about['codes']} codes, so uniform noise has "
        f"{math.log2(about['codes']):.4g} bits a code. eps: of (p + 1e-6) / (1 + 1e-6 V)."
    )


MEASURE = ImagesMeasure()
