"""How good the images are that models of labs/image_tokens draw: checkpoints -> a table.

    python classify.py config/mnist_brief.py --source=DIR               the classifier, once
    python eval_images.py out/*-mnist_tokens-* --classifier=out/mnist_brief --out results/images

bits         -log2 p of the held-out codes given the class: a code, and a pixel of the image
FD           Frechet distance between features of sampled and held-out images (ours: before the last layer of
             the classifier, so no FID, and only rows of one classifier can be compared)
precision    per cent of sampled images within the manifold of held-out ones, recall the reverse
             (Kynkaanniemi et al. 2019, 3 neighbours)
accuracy     per cent whose class the classifier finds to be the one asked for

for each scale of classifier-free guidance. The rows below are other held-out images, the same through the
tokenizer, and uniform noise of codes. Means over the runs of a configuration, with 95% intervals by
Student's t over their seeds. OUT.samples/RUN.png: images by class (down) and guidance (four each).
"""

if __name__ == "__main__":
    from runtime import configurator

    configurator.quiet_imports("scipy", "tabulate", "matplotlib")

import math
import sys
from dataclasses import dataclass, field, fields
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from evaluation.by_seed import grouped, kept_rows, mean, problems, rows_of, table, update
from evaluation.tables import Row, beside, exit_code, scored_otherwise
from tqdm import tqdm

from classify import ClassifyConfig
from data.held_out import HeldOut, open_held_out
from data.images.sets import Images, ImageSet
from evaluation.guidance import Drawn, check_cfg, sample_codes, what_is_drawn
from evaluation.images import NEIGHBOURS, Seen, grid, halves, judged, seen, write_png
from evaluation.orders import Asker
from evaluation.provenance import versions
from evaluation.rows import Entry, check_comparable, entries
from evaluation.sampling import check_sampling, weight_draws
from evaluation.scoring import score
from evaluation.settings import run_seed
from labs.image_tokens.prepare import FILES, read_source
from model import LanguageModel
from runtime import checkpoint
from runtime.configurator import check_seed, cli, configure, help_text, wants_help
from runtime.device import float64_device, get_device, get_dtype, settle_dtype
from runtime.errors import UserError, users_values
from runtime.files import check_writable, foreign
from runtime.names import file_stem

PROGRAM = "eval_images.py"
CODE = (  # what decides the numbers of a row, beside what decides those of eval_diversity.py
    *(f"evaluation/{name}.py" for name in ("images", "guidance")),
    *(f"labs/image_tokens/{name}.py" for name in ("codecs", "prepare")),
    "data/images/cnn.py",
)
TITLES = {"fd": "FD (our CNN)", "precision": "precision", "recall": "recall", "accuracy": "accuracy"}
SHOWN = (10, 4)  # classes, and images of each at a point, in the picture of a run


@dataclass
class ImagesConfig:
    # fmt: off
    checkpoints: list[str]          # [NAME=]RUN ...: out folders of training runs, or checkpoints in them
    classifier: str = ""            # the out folder of a run of classify.py on the same images
    split: Literal["validation", "test"] = "test"
    images: int = 2000              # sampled at each point, and real ones they are compared with
    cfg: list[float] = field(default_factory=lambda: [1.0, 2.0, 3.0, 4.0])  # scales of guidance; 1: none
    temperatures: list[float] = field(default_factory=lambda: [1.0])    # of log p, after the guidance
    top_k: list[int] = field(default_factory=lambda: [0])               # likewise; 0: all
    samples: int = 8                # weight draws of Bayesian rows
    seed: int = 1337                # of what is sampled
    data: str = ""                  # the prepared data folder; empty: the one of the first run
    device: str = "auto"            # auto, cpu, cuda, cuda:N or mps
    dtype: str = "float32"          # of matrix products: float32, bfloat16, float16, or auto
    out: str = ""                   # writes OUT.md, OUT.json and OUT.samples/RUN.png
    #                                 rows of other runs, and of unchanged ones, in it are kept
    # fmt: on

    def check(self) -> None:
        """UserError naming the value that cannot work."""
        if not self.classifier:
            raise UserError(
                "classifier = '': its features are what images are compared by; train one on the same "
                "images (python classify.py config/mnist_brief.py) and give --classifier=out/mnist_brief"
            )
        for key, least in (("images", NEIGHBOURS + 1), ("samples", 1)):
            if getattr(self, key) < least:
                raise UserError(f"{key} = {getattr(self, key)}: must be at least {least}")
        if not self.points:
            raise UserError("cfg, temperatures and top_k: give at least one value of each")
        for p in self.points:
            check_cfg(p.cfg)
            check_sampling(p.temperature, p.top_k, 1.0)
        check_seed(self.seed)

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


def read_arguments(argv: list[str]) -> ImagesConfig:
    c = configure(ImagesConfig, argv)
    c.check()
    return c


# -----------------------------------------------------------------------------
# What all rows are measured on


class Asked(NamedTuple):
    runs: list[Entry]
    data: HeldOut
    drawn: Drawn
    classifier: LanguageModel
    real: Seen  # held-out images that the others are compared with
    labels: np.ndarray  # theirs, and so of the images that are drawn
    others: Images  # as many other ones


def open_classifier(path: str, images: str, weights: bool = True) -> checkpoint.Checkpoint:
    """The best checkpoint of a run of classify.py. UserError if it is none or of another set of images."""
    ckpt = checkpoint.load(checkpoint.find(path), weights=weights)
    if ckpt.config.get("trunk") != "cnn":
        raise UserError(f"--classifier={path} is no run of classify.py: give the out folder of one")
    if ckpt.config.get("images") != images:
        raise other_images(path, ckpt, images)
    return ckpt


def other_images(path: str, ckpt: checkpoint.Checkpoint, images: str) -> UserError:
    return UserError(
        f"--classifier={path} was trained on {ckpt.config.get('images')}, not on these images of {images}: "
        "give one that was"
    )


def load_classifier(path: str, images: ImageSet) -> LanguageModel:
    """The model of `open_classifier`, on the CPU. UserError if its images are not these."""
    ckpt = open_classifier(path, images.name)
    if ckpt.config.get("data_sha256") != images.sha256:
        raise other_images(path, ckpt, images.name)
    known = {f.name for f in fields(ClassifyConfig)}
    with foreign(ckpt.path / "config.json", "the configuration of a classifier"), users_values():
        c = ClassifyConfig(**{k: v for k, v in ckpt.config.items() if k in known})
        model = c.network(images.kind.shape, images.kind.classes)
    checkpoint.restore(model, ckpt)
    return model.eval().requires_grad_(False)


def opened(c: ImagesConfig) -> Asked:
    """UserError for all that cannot be measured, before any work."""
    runs = entries(c.checkpoints)
    for entry in runs:
        what_is_drawn(entry.ckpt, c.data, any(scale != 1 for scale in c.cfg))
    check_comparable(runs)
    drawn = what_is_drawn(runs[0].ckpt, c.data)
    if drawn.codec is None:
        raise UserError(
            f"{drawn.folder} holds another program's codes, whose images are not here: eval_orders.py scores "
            "them"
        )
    data = open_held_out(drawn.folder / f"{c.split}.bin")
    images = read_source(data.info["source"]).open()
    classifier = load_classifier(c.classifier, images)
    real, others = halves(getattr(images, c.split), c.images)
    if len(real) <= NEIGHBOURS:
        raise UserError(f"the {c.split} split has too few images: {len(real)} in each half of it")
    if c.out:
        check_writable(beside(Path(c.out), ".json"))
    return Asked(runs, data, drawn, classifier, seen(classifier, real.pixels), real.labels, others)


def references(a: Asked, seed: int) -> list[Row]:
    """Rows that no model stands behind."""
    codec = a.drawn.codec
    assert codec is not None
    noise = np.random.default_rng(seed).integers(codec.codes, size=(len(a.labels), math.prod(codec.grid)))
    through = codec.decode(codec.encode(a.others.pixels))
    made = {
        "other held-out images": (a.others.pixels, a.others.labels),
        "the same through the tokenizer": (through, a.others.labels),
        "uniform noise of codes": (codec.decode(noise), a.labels),
    }
    return [{"row": name, **look(a, pixels, labels)} for name, (pixels, labels) in made.items()]


def look(a: Asked, pixels: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    return judged(a.real, seen(a.classifier, pixels), labels)


# -----------------------------------------------------------------------------
# A row


def run_row(c: ImagesConfig, entry: Entry, a: Asked) -> Row:
    """All that is measured of one run."""
    device = get_device(c.device)
    model, ckpt = checkpoint.load_model(entry.path, device=device, dtype=get_dtype(c.dtype))
    draws = weight_draws(model, ckpt.config, c.samples, c.seed, c.dtype)
    s = score(model, a.data.ids, 0, draws, device, c.dtype, given=a.data.given)
    codec = a.drawn.codec
    assert codec is not None
    per_pixel = math.prod(codec.grid) / math.prod(codec.shape[1:])
    row: Row = {}
    for end, nll in (("", s.nll), ("_eps", s.eps_nll)):
        bits = nll / s.tokens / math.log(2)
        row |= {f"bits_code{end}": bits, f"bits_pixel{end}": bits * per_pixel}
    row |= {"zeros": s.zeros, "points": []}
    strips = []
    for point in c.points:
        pixels = drawn_at(point, c, Asker(model, draws, device, c.dtype), ckpt, entry.name, a)
        row["points"].append({**point._asdict(), **look(a, pixels, a.labels)})
        strips.append(strip(pixels, a.labels))
    if c.out:
        name = f"{file_stem(entry.name)}.png"
        write_png(beside(Path(c.out), ".samples") / name, np.concatenate(strips, 1))
    return row


def drawn_at(
    point: Point, c: ImagesConfig, who: Asker, ckpt: checkpoint.Checkpoint, name: str, a: Asked
) -> np.ndarray:
    """Pixels of images of the classes `a.labels`, the same ones again for the same run and settings."""

    def bar(batches: Any) -> Any:
        return tqdm(batches, desc=f"{name}: guidance {point}", leave=False)

    generator = torch.Generator(float64_device(who.device)).manual_seed(run_seed(c.seed, ckpt.config))
    how = (point.temperature, point.top_k, 1.0)
    what = (who.model, who.draws, a.drawn.layout, a.labels, point.cfg, how, generator)
    assert a.drawn.codec is not None
    return a.drawn.codec.decode(sample_codes(*what, who.device, who.dtype, bar))


def strip(pixels: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """A picture of a few images of each class, a row a class."""
    classes, each = np.unique(labels)[: SHOWN[0]], SHOWN[1]
    chosen = np.concatenate([np.resize(np.flatnonzero(labels == i), each) for i in classes])
    return np.pad(grid(pixels[chosen], len(classes), each), ((0, 0), (0, 8), (0, 0)), constant_values=255)


# -----------------------------------------------------------------------------
# The table


def text_of(content: dict[str, Any], rows: list[Row]) -> str:
    """NLL, then what is drawn at each point; a line for each configuration."""
    groups = grouped(rows)
    keys = ["bits_code", "bits_pixel", "bits_code_eps"]
    nll = [
        [name, str(len(runs)), *(mean([r[k] for r in runs]) for k in keys)] for name, runs in groups.items()
    ]
    drawn = []
    for name, runs in groups.items():
        for same in zip(*(r["points"] for r in runs)):
            point = str(Point(*(same[0][k] for k in Point._fields)))
            drawn.append([name, point, *(mean([p[k] for p in same]) for k in TITLES)])
    drawn += [[r["row"], "", *(f"{r[k]:.4g}" for k in TITLES)] for r in content["references"]]
    head = ["", "runs", "bits a code", "bits a pixel", "bits a code, eps"]
    said = "\n\n".join([content["said"], *problems(rows), *scored_otherwise(rows, CODE)])
    return "\n\n".join([table(head, nll), table(["", "guidance", *TITLES.values()], drawn), said])


def settings_of(c: ImagesConfig) -> dict[str, Any]:
    """What two rows must share to stand in one table, as far as it is settled already."""
    keys = ("split", "images", "cfg", "temperatures", "top_k", "samples", "seed")
    known = {k: getattr(c, k) for k in keys} | ({"dtype": c.dtype} if c.dtype != "auto" else {})
    return known | {"classifier": checkpoint.weights_digest(checkpoint.find(c.classifier))}


def check_before(c: ImagesConfig, out: Path, wanted: list[dict[str, Any]]) -> dict[str, Row]:
    """For table.py, before the trainings: the rows that `out` has. UserError for runs of these configurations
    that cannot be measured, and for rows of other settings."""
    for run in wanted:
        if run["dataset"] != "image_tokens":
            raise UserError(f"dataset = {run['dataset']!r}: eval_images.py is of image tokens alone")
        source = read_source(run["source"])
        if source.images == FILES:
            raise UserError(f"source = {run['source']!r}: another program's codes have no images to judge")
        if not source.settings.drop and any(scale != 1 for scale in c.cfg):
            raise UserError(f"cfg = {c.cfg} with drop=0 in source: give --cfg=[1], or images with drop=10")
        open_classifier(c.classifier, source.images, weights=False)
    return kept_rows(out, settings_of(c), PROGRAM)


def main(argv: list[str]) -> int:
    if wants_help(argv):
        print(__doc__, help_text(ImagesConfig), sep="\n")
        return 0
    c = read_arguments(argv)
    c.dtype = settle_dtype(c.dtype, get_device(c.device)).name
    a = opened(c)
    out = Path(c.out) if c.out else None
    said = (
        f"{len(a.labels)} images a point, against as many of the {c.split} split, with the features of "
        f"{Path(c.classifier).name}; {a.drawn.layout.codes} codes, so uniform noise has "
        f"{math.log2(a.drawn.layout.codes):.4g} bits a code. eps: of (p + 1e-6) / (1 + 1e-6 V)."
    )
    settings = settings_of(c) | {"corpus": a.data.info["sha256"]}
    content: dict[str, Any] = {"settings": settings, "command": " ".join(sys.argv), "versions": versions()}
    content |= {"said": said, "references": references(a, c.seed)}
    kept = kept_rows(out, settings, PROGRAM)

    def text(rows: list[Row]) -> str:
        return text_of(content, rows)

    def written(rows: dict[str, Row]) -> list[Row]:
        return update(out, content, rows, PROGRAM, text) if out else list(rows.values())

    rows = rows_of(a.runs, kept, CODE, lambda entry: run_row(c, entry, a), written, out)
    print(text(rows))
    asked = {e.name for e in a.runs}
    return exit_code({r["name"]: r for r in rows if r["name"] in asked})


if __name__ == "__main__":
    cli(main)()
