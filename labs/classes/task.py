"""Training on labelled images: the classes are the vocabulary, an image is the context of one label."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from common.errors import UserError, checking
from common.files import write_json
from common.log import strict
from common.places import commit
from config.defaults import TrainConfig
from data.batches import Batch, BatchSource, batch_indices
from heads import Head, Weights
from labs.classes.judge import Judged, judge_images
from labs.classes.sets import KINDS, Images, open_images
from labs.classes.trunk import USUAL, width
from model import LanguageModel
from training.distributed import Processes
from training.run import Run, restore
from training.text import Evaluation, Evaluator

CLASSES = "classes"  # what stands for a tokenizer
RESULT = "test.json"  # in the run's folder: what `best` does on the test images
# settings that images decide, or that have no meaning for them
DECIDED = {
    **{"trunk": "cnn", "tokenizer": CLASSES, "tied": False},
    **{"block_size": 1, "n_layer": 1, "n_head": 1, "dropout": 0.0},
    **{"labels": "true", "micro_batch": 0, "eval_windows": 0},
}


class ImageSource:
    """`batch_size` images a step, a pure function of (seed, step): an epoch shows each once, in an order of
    its own. A label is a token."""

    parts = 1

    def __init__(self, images: Images, head: Head, batch_size: int, seed: int):
        self.images, self.head, self.batch_size, self.seed = images, head, batch_size, seed

    def positions_with_loss(self, step: int) -> int:
        return self.batch_size

    def batch(self, step: int, part: int) -> Batch:
        rows = batch_indices(len(self.images), self.batch_size, step, self.seed)
        return self.of(self.images.at(rows))

    def of(self, images: Images) -> Batch:
        """These images as pixels (B, channels, height, width) and their labels' targets."""
        labels = torch.from_numpy(images.labels)[:, None]  # (B, 1): one position an image
        # heads that look at the text before a token get the image's own label: there is no other text
        return Batch(torch.from_numpy(np.ascontiguousarray(images.pixels)), self.head.targets(labels, labels))


class ClassesTask:
    """A set of images, judged by accuracy on its validation images and, where it is equal, by NLL. See
    training.text.TrainingTask."""

    tokenizer = None

    def __init__(self, config: TrainConfig, procs: Processes):
        if procs.world > 1:
            raise UserError(f"dataset = {config.dataset!r} under torchrun: images are for one process")
        self.config = config
        self.images = open_images(config.dataset, config.source)
        classes, self.size = self.images.kind.classes, len(self.images.train)
        self.info: dict[str, Any] = {
            "vocab_size": classes,
            "tokenizer_fingerprint": f"{classes} classes",
            "data": config.dataset,
            "data_sha256": self.images.sha256,
            "train_tokens": self.size,
        }

    @staticmethod
    def settle(config: TrainConfig) -> TrainConfig:
        shape, usual = KINDS[config.dataset].shape, vars(TrainConfig())
        if config.data and not config.resume:
            raise UserError(f"data = {config.data!r} with dataset = {config.dataset!r}: leave it out")
        args = {"layers": USUAL, "shape": list(shape), **config.trunk_args}
        with checking():
            decided: dict[str, Any] = {**DECIDED, "n_embd": width(args["layers"], shape)}
        given = {key: getattr(config, key) for key in decided} | {"shape": args["shape"]}
        for key, value in {**decided, "shape": list(shape)}.items():
            # the files in config/ have trunk and tied: whatever else stands there was asked for
            left_out = () if key in ("trunk", "tied") else (usual.get(key),)
            if given[key] not in (value, *left_out):
                raise UserError(f"{key} = {given[key]!r} with dataset = {config.dataset!r}: it is {value!r}")
        return replace(config, **decided, trunk_args=args)

    def source(self, model: LanguageModel, procs: Processes) -> BatchSource:
        c = self.config
        return ImageSource(self.images.train, model.head.head, c.batch_size, c.seed)

    def evaluate(self, evaluator: Evaluator, last: bool) -> Evaluation:
        figures = self.judge_split(evaluator, "validation")
        values = {"error": 100 - figures.accuracy, "nll": figures.nll}  # per cent; nats an image
        logged = {f"val_{key}": value for key, value in figures._asdict().items()}
        return Evaluation(values, values, logged)

    def judge_split(self, evaluator: Evaluator, split: str) -> Judged:
        """The model's figures on the images of a split. Interrupted at a signal."""
        e = evaluator

        def work(draws: list[Weights]) -> Judged:
            images = getattr(self.images, split)
            return judge_images(e.model, images, e.procs.device, e.config.dtype, draws, e.until_stopped)

        return e.shared(work)

    def test(self, evaluator: Evaluator, criterion: dict[str, float]) -> None:
        """What the best checkpoint does on the test images: said, and written to RESULT."""
        best = Run(evaluator.out, "best")
        restore(evaluator.model, best.weights(), best.path)
        figures, step = self.judge_split(evaluator, "test"), best.progress.step
        chosen = {"val_accuracy": 100 - criterion["error"], "val_nll": criterion["nll"]}
        values = {**figures._asdict(), **chosen, "best_step": step, "commit": commit()}
        result = {"name": self.config.name, **{k: strict(v) for k, v in values.items()}}
        write_json(evaluator.out / RESULT, {**result, "training": best.record})
        found = f"test_accuracy {figures.accuracy:.2f} | test_nll {figures.nll:.4f}"
        evaluator.procs.print0(f"step {step} | {found}")


TASK = ClassesTask
