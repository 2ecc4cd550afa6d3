"""The classes measure: how well classifiers of images do on the test images, beside what Banerjee et al. 2021
published.

    python table.py config/tables/mnist.py config/tables/mnist_brief.py --flags=--source=DIR
    python table.py --measure=classes out/mnist_brief --source=DIR

A run is measured by its best checkpoint on the validation images, and the test images are scored once. Heads
differ by the gain of their logits before they differ by anything else: --search finds each row's own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from common.device import get_device
from common.errors import UserError
from evaluate.sampling import WEIGHT_DRAWS, weight_draws
from labs.classes.judge import COLUMNS, PUBLISHED, judge_images
from labs.classes.sets import KINDS, ImageSet, open_images
from tables.measure import Measure, NamedRun, Session, open_runs
from tables.names import check_apart
from tables.store import Row
from tables.summary import grouped, summarise
from tables.views import View, problems
from training.checkpoint import holds_run
from training.run import Degenerate, Run, load_model


@dataclass
class ClassesConfig:
    # fmt: off
    checkpoints: list[str]          # [NAME=]RUN ...: out folders of classifiers, or checkpoints in them
    split: Literal["validation", "test"] = "test"
    source: str = ""                # the folder with the images' files; empty: where the first run had them
    device: str = "auto"            # auto, cpu, cuda, cuda:N or mps
    out: str = ""                   # writes OUT.jsonl, OUT.md and OUT.csv
    #                                 rows of unchanged checkpoints in it are kept
    # fmt: on


class ClassesSession(Session):
    """The classifiers that are asked for, and the images that they are asked about."""

    def __init__(self, c: ClassesConfig):
        """UserError for what are no classifiers of the same images."""
        self.c, self.device = c, get_device(c.device)
        runs = open_runs(c.checkpoints)
        check_apart(entry.name for entry in runs)
        self.subjects: Sequence[NamedRun] = runs
        first = runs[0].ckpt.config
        if first.dataset not in KINDS:
            raise UserError(f"{runs[0].path} is a language model's run: --measure=text measures such")
        images = open_images(first.dataset, c.source or first.source)
        for entry in runs:
            if entry.ckpt.config.data_sha256 != images.sha256:
                raise UserError(f"{entry.path} was trained on other images than those of --source")
        self.images = getattr(images, c.split)
        self.settings = classes_settings(c, images)

    def numbers(self, subject: NamedRun) -> Row:
        """Accuracy, NLL and calibration; and what chose the checkpoint: the same on validation images."""
        model, ckpt = load_model(subject.path, device=self.device)
        dtype = ckpt.config.dtype
        draws = weight_draws(model, ckpt.record, WEIGHT_DRAWS, 0, dtype)
        judged = judge_images(model.eval(), self.images, self.device, dtype, draws)
        if judged.nll != judged.nll:
            raise Degenerate("its log-probabilities are not numbers")
        folder = subject.ckpt.path.parent  # of one checkpoint that was copied alone, of no run
        last = Run(folder, "last") if holds_run(folder) else ckpt
        chosen = {"val_accuracy": 100 - ckpt.progress.val["error"], "val_nll": ckpt.progress.val["nll"]}
        steps = {"best_step": ckpt.progress.step, "step": last.progress.step}
        return {**judged._asdict(), **chosen, **steps}


def classes_settings(c: ClassesConfig, images: ImageSet) -> dict[str, Any]:
    """What two rows must share to stand in one table."""
    return {"split": c.split, "images": images.name, "corpus": images.sha256}


class ClassesMeasure(Measure):
    name, which, config, session = "classes", "best", ClassesConfig, ClassesSession

    def check(self, c: ClassesConfig, wanted: Sequence[dict[str, Any]]) -> dict[str, Any]:
        sets = {(config["dataset"], config["source"]) for config in wanted}
        for dataset, _ in sets:
            if dataset not in KINDS:
                raise UserError(f"dataset = {dataset!r} is text: --measure=text measures its runs")
        sets |= {(dataset, c.source) for dataset, _ in sets if c.source}
        # what cannot be had is said once, and before any training
        opened = [classes_settings(c, open_images(*pair)) for pair in sorted(sets)]
        if any(settings != opened[0] for settings in opened):
            which = ", ".join(" of ".join(filter(None, pair)) for pair in sorted(sets))
            raise UserError(f"{which}: other images cannot stand in one table")
        return opened[0]

    def view(self, rows: list[Row]) -> View:
        sound = [r for r in rows if "problem" not in r]
        if not sound:
            return View([problems(rows)])
        return View.of_summary(summarise_classes(sound), COLUMNS, settings_line(sound), problems(rows))


MEASURE = ClassesMeasure()


def summarise_classes(rows: list[Row]) -> list[Row]:
    """A line a row: means over its seeds, marked where it cannot be told from the best. No row has a
    problem."""
    published = PUBLISHED.get(rows[0]["settings"]["images"], {})
    return summarise(
        [
            row
            | {"gain": row["training"]["gain"]}
            | ({"published": published[label]} if label in published else {})
            for label, same in grouped(rows).items()
            for row in same
        ],
        COLUMNS,
    )


def settings_line(rows: list[Row]) -> str:
    """What all rows share."""
    t, each = rows[0]["training"], [row["training"] for row in rows if "training" in row]
    keys = ("trunk_args", "batch_size", "optimizer", "learning_rate", "dtype")
    same = [key for key in keys if all(training[key] == t[key] for training in each)]
    images = f"images {rows[0]['settings']['images']}, of them to train on {t['train_tokens']:,}"
    return ", ".join([images, f"steps {rows[0]['step']}", *(f"{key} {t[key]}" for key in same)])
