"""Trains an image classifier with a chosen output head: a configuration -> checkpoints and test accuracy.

    python classify.py config/mnist.py --head=taylor [--key=value ...]
    python classify.py --head=sm_taylor --head_args.n=4 --gain=2        (scikit-learn's digits)

Labels are tokens: the classes are the vocabulary, and an image is one position. OUT holds `last`, `best` (by
accuracy on the validation images), log.jsonl and, at the end, test.json: what `best` does on the test images.
Ctrl-C, SIGTERM or a closed terminal saves, then stops; --resume goes on, and extends a finished run with
--epochs=MORE. docs/classify.md.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from runtime.configurator import check_seed, configure
from runtime.door import Program
from runtime.errors import UserError, users_values
from runtime.names import check_row_name
from runtime.values import check_head, registered

if TYPE_CHECKING:
    from model import LanguageModel


@dataclass
class ClassifyConfig:
    # fmt: off
    # the run
    name: str = ""                  # row of the table; empty: the config files' names, joined
    out_dir: str = ""               # empty: out/<name>
    seed: int = 1337                # of initialisation, data order and dropout
    resume: bool = False            # go on from out_dir/last
    # data
    dataset: Literal["digits", "mnist", "cifar10", "cifar100"] = "digits"
    source: str = ""                # the folder with its files; empty: the Hugging Face hub (digits: none)
    validation: float = 0.1         # share of the train split that chooses the best checkpoint
    # network: the last linear layer, to the classes, is the head's
    layers: str = "Conv[3x3,32] ReLU MaxPool[2x2,2] FC[64] ReLU"    # see data/images/cnn.py
    he: bool = False                # He's initial weights; False: Glorot's
    # output head
    head: str = "softmax"           # a name in heads.HEADS
    head_args: dict = field(default_factory=dict)  # its constructor's arguments; --head_args.n=4 sets one
    gain: float = 1.0               # g of the logits z = g h W^T + b; softmax: one over the temperature
    learn_gain: bool = False        # g is trained, and starts at `gain`
    # optimisation
    optimizer: Literal["adam", "sgd"] = "adam"      # sgd: Nesterov's momentum of .9
    learning_rate: float = 1e-3     # constant
    weight_decay: float = 0.0       # of the network's kernels and matrices, as L2
    batch_size: int = 100           # images a step
    epochs: float = 20.0            # passes over the images that are trained on
    # evaluation and logs
    eval_interval: float = 1.0      # epochs between evaluations of the validation images, with a checkpoint
    log_interval: int = 50          # steps between lines of the terminal and of log.jsonl
    # machine
    device: str = "auto"            # cuda where there is one, else cpu; "mps" if asked for
    dtype: Literal["float32", "bfloat16"] = "float32"   # of convolutions and matrix products
    # fmt: on

    @classmethod
    def read(cls, argv: list[str]) -> "ClassifyConfig":
        """The configuration of a command line: config files, then --key=value flags. UserError naming every
        value that cannot work."""
        config = configure(cls, argv)
        config.out_dir = config.out_dir or f"out/{config.name}"
        if problems := list(config._problems()):
            raise UserError("; ".join(problems))
        config.sketch()
        return config

    def _problems(self) -> Iterator[str]:
        for key in ("batch_size", "log_interval"):
            if getattr(self, key) < 1:
                yield f"{key} = {getattr(self, key)}: must be at least 1"
        for key in ("learning_rate", "epochs", "eval_interval"):
            if not 0 < getattr(self, key) < math.inf:
                yield f"{key} = {getattr(self, key)}: must be positive and finite"
        if not 0 <= self.weight_decay < math.inf:
            yield f"weight_decay = {self.weight_decay}: must be at least 0 and finite"
        if not 0 < self.validation < 1:
            yield f"validation = {self.validation}: must be a share of the train split, such as 0.1"
        checks = (
            lambda: check_row_name(self.name),
            lambda: check_seed(self.seed),
            lambda: check_head(self.head),
        )
        for check in checks:
            try:
                check()
            except ValueError as error:
                yield str(error)

    def sketch(self) -> "LanguageModel":
        """The network and head, of which nothing is allocated. UserError if there is no such one, or
        none of that size: they say so themselves, which takes torch."""
        import torch

        from data.images.sets import KINDS

        kind = KINDS[self.dataset]
        try:
            with torch.device("meta"), users_values():
                return self.network(kind.shape, kind.classes)
        except (RuntimeError, TypeError) as error:  # a size that no tensor has
            why = str(error).partition("\n")[0]
            raise UserError(f"layers = {self.layers!r}: too large for any machine ({why})") from None

    def network(self, shape: tuple[int, int, int], classes: int) -> "LanguageModel":
        """A new network and head for such images. ValueError if there is none."""
        import torch
        from torch import nn

        from data.images.cnn import CNN
        from heads import make_head
        from model import LanguageModel

        trunk = CNN(self.layers, shape, classes)
        weight = nn.Parameter(torch.zeros(trunk.config.padded_vocab, trunk.config.n_embd))
        beside: dict[str, Any] = {"gain": self.gain, "learn_gain": self.learn_gain}
        head = make_head(self.head, classes, weight, self.head_args, **beside)
        return LanguageModel(trunk, head)


about = __doc__ + "\n    # heads.HEADS: " + ", ".join(registered("heads", "HEADS"))
program = Program(__name__, about, ClassifyConfig)

import contextlib
import os
import signal
import time
from dataclasses import asdict
from pathlib import Path
from types import FrameType

import numpy as np
import torch

from data.batches import Loader
from data.images.batches import ImageSource
from data.images.cnn import CNN, initialise
from data.images.sets import open_images, public
from evaluation.classification import Judged, judge
from evaluation.provenance import commit
from model import LanguageModel
from runtime import checkpoint
from runtime.configurator import cli, completed
from runtime.device import autocast, get_device
from runtime.files import write_json
from runtime.logs import Log, duration
from runtime.memory import check_fits
from runtime.processes import on_stop
from runtime.resume import last_of, refuse_other_run, saved_best

RESULT = "test.json"  # in the run's folder
# what a resumed run may change: none of it changes what a step computes, but for another device's rounding
RESUMABLE = ("resume", "out_dir", "epochs", "eval_interval", "log_interval", "device", "source")
# bytes of a parameter in training: weight, gradient and the optimizer's moments, float32 each
STATE = {"adam": 16, "sgd": 12}
NONE_YET = (-math.inf, -math.inf)  # a Judged.rank below all others
STOPPING = b"\nstopping after this step, to save; Ctrl-C again stops at once and loses the steps since then\n"


def seed_step(seed: int, step: int) -> None:
    """Dropout is a function of the seed and the step: there is no generator state to save."""
    torch.manual_seed(int(np.random.SeedSequence((seed, step)).generate_state(1)[0]))


def make_optimizer(c: ClassifyConfig, model: LanguageModel) -> torch.optim.Optimizer:
    matrices = [p for p in model.trunk.parameters() if p.dim() > 1]
    chosen = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in chosen]
    groups = [{"params": matrices, "weight_decay": c.weight_decay}, {"params": others, "weight_decay": 0.0}]
    if c.optimizer == "adam":
        return torch.optim.Adam(groups, lr=c.learning_rate)
    return torch.optim.SGD(groups, lr=c.learning_rate, momentum=0.9, nesterov=True)


def check_memory(c: ClassifyConfig, device: torch.device) -> None:
    """UserError if a training of this size cannot fit, by what it needs at the least."""
    model = c.sketch()
    assert isinstance(model.trunk, CNN)
    parameters = sum(p.numel() for p in model.parameters())
    needed = STATE[c.optimizer] * parameters + 4 * c.batch_size * model.trunk.largest
    what = f"training {parameters:,} parameters with batch_size = {c.batch_size}"
    check_fits(needed, device, what, "batch_size, or the sizes in layers")


class Diverged(RuntimeError):
    """The loss or the probabilities are not numbers."""


class Training:
    """A run: model, optimizer, images and where it stands."""

    def __init__(self, config: ClassifyConfig):
        c = self.config = config
        self.out, self.device = Path(c.out_dir), get_device(c.device)
        self.stop = 0  # the signal that asked for the end
        self.step, self.evaluated = 0, -1
        self.best = NONE_YET
        check_memory(c, self.device)
        self.data = open_images(c.dataset, c.source, c.validation)
        torch.manual_seed(c.seed)
        with users_values():
            self.model = c.network(self.data.kind.shape, self.data.kind.classes)
        initialise(self.model.trunk, self.model.head, c.he)
        self.model.to(self.device)
        self.optimizer = make_optimizer(c, self.model)
        self.source = ImageSource(self.data.train, self.model.head.head, c.batch_size, c.seed)
        self.steps = max(1, self.steps_of(c.epochs))
        self.every = max(1, self.steps_of(c.eval_interval))
        # what every checkpoint says of its model (runtime/checkpoint.py)
        size = {**asdict(self.model.trunk.config), "trunk": "cnn", "tied": False, "bayesian": False}
        classes = {"tokenizer": "classes", "tokenizer_fingerprint": f"{self.data.kind.classes} classes"}
        self.saved_config = {**size, "prior_sigma": 0.02, **classes, **asdict(c), **public(self.data)}
        if c.resume:
            self.restore()

    def steps_of(self, epochs: float) -> int:
        return round(epochs * len(self.data.train) / self.config.batch_size)

    # -- steps -------------------------------------------------------------

    def train_step(self, loader: Loader) -> float:
        """One step; its mean loss in nats an image. Diverged if that is not finite."""
        seed_step(self.config.seed, self.step)
        (batch,) = loader.batches(self.step)
        with autocast(self.device, self.config.dtype):
            total, count = self.model(batch.tokens, batch.targets)
        loss = total / count
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.step += 1
        if not math.isfinite(mean := loss.item()):
            raise Diverged(f"the loss is {mean}")
        return mean

    def run(self, log: Log) -> int:
        """Trains to the end, a signal, or divergence; the exit code."""
        loader = Loader(self.source, self.device)
        self.model.train()
        began, first = time.perf_counter(), self.step
        try:
            while True:
                due = self.step == self.steps or (self.step and self.step % self.every == 0)
                if due and self.evaluated != self.step:
                    self.evaluate(log)
                if self.stop:
                    return self.leave()
                if self.step == self.steps:
                    break
                loss = self.train_step(loader)
                if self.step % self.config.log_interval == 0:
                    each = (time.perf_counter() - began) / (self.step - first)
                    log.add(self.step, loss=loss, images_per_s=round(self.config.batch_size / each, 1))
                    left = duration(each * (self.steps - self.step))
                    print(f"step {self.step}/{self.steps}: loss {loss:.4f}, ETA {left}", flush=True)
        except Diverged as e:
            print(f"stopped at step {self.step}: {e}; try a lower learning_rate or gain", flush=True)
            log.add(self.step, diverged=str(e))
            self.write_result(problem=str(e))
            return 1
        finally:
            loader.close()
        self.test(log)
        return 0

    def evaluate(self, log: Log) -> None:
        """Says, logs and saves how the model does on the validation images."""
        found = self.judged("validation")
        if math.isnan(found.nll):
            raise Diverged("the validation NLL is not a number")
        better, self.best = found.rank > self.best, max(self.best, found.rank)
        epoch = self.step * self.config.batch_size / len(self.data.train)
        print(f"epoch {epoch:.4g}: validation {described(found)}{' (best)' * better}", flush=True)
        log.add(self.step, **{f"val_{k}": v for k, v in found._asdict().items()})
        self.evaluated = self.step
        self.save("last", found)  # first: from `last` alone a run goes on
        if better:
            self.save("best", found)

    def judged(self, split: Literal["validation", "test"]) -> Judged:
        self.model.eval()
        try:
            return judge(self.model, getattr(self.data, split), self.device, self.config.dtype)
        finally:
            self.model.train()

    def test(self, log: Log) -> None:
        """What the best checkpoint does on the test images: said, logged, and written to RESULT."""
        ckpt = checkpoint.load(checkpoint.find(self.out, "best"))
        checkpoint.restore(self.model, ckpt)
        found = self.judged("test")
        chosen = {k: ckpt.progress[k] for k in ("val_accuracy", "val_nll")}
        self.write_result(**found._asdict(), **chosen, best_step=ckpt.progress["step"])
        log.add(self.step, **{f"test_{k}": v for k, v in found._asdict().items()})
        print(f"test: {described(found)}, of step {ckpt.progress['step']}; {self.out}", flush=True)

    def write_result(self, **values: Any) -> None:
        """RESULT, with what makes this run."""
        training = {k: v for k, v in self.saved_config.items() if k not in ("resume", "out_dir", "source")}
        result = {"name": self.config.name, **values, "step": self.step, "commit": commit()}
        odd = {k: str(v) for k, v in values.items() if v == math.inf}  # which JSON does not have
        write_json(self.out / RESULT, {**result, **odd, "training": training})

    # -- checkpoints -------------------------------------------------------

    def save(self, which: str, found: Judged | None) -> None:
        progress: dict[str, Any] = {"step": self.step, "evaluated": self.evaluated, "best": list(self.best)}
        progress |= {"val_accuracy": found and found.accuracy, "val_nll": found and found.nll}
        optimizer = self.optimizer.state_dict() if which == "last" else None
        checkpoint.save(self.out / which, self.model, self.saved_config, progress, optimizer)

    def restore(self) -> None:
        """Goes on from out_dir/last. UserError if it was another run."""
        ckpt = last_of(self.out)
        had = completed(ClassifyConfig, ckpt.config)
        refuse_other_run(self.out, had, lasting(self.saved_config))
        checkpoint.restore(self.model, ckpt)
        saved = saved_best(self.out)
        damaged = UserError(f"the checkpoint {ckpt.path} cannot be read: use another one or train again")
        try:
            self.optimizer.load_state_dict(ckpt.optimizer or {})
            accuracy, nll = ckpt.progress["best"]
            self.best, self.evaluated = (accuracy, nll), ckpt.progress["evaluated"]
            best_is_saved = self.best <= tuple(saved.get("best", NONE_YET))
            states = self.optimizer.state.items()
            fits = all(t.shape in (p.shape, ()) for p, state in states for t in state.values())
        except Exception as error:  # torch trusts what it is given, and fails in many ways
            raise damaged from error
        if not fits:
            raise damaged
        self.step = ckpt.progress["step"]
        if self.steps < self.step:
            raise UserError(
                f"epochs = {self.config.epochs:g} is {self.steps} steps, but the run is at step {self.step} "
                "already: give at least as many, or another --out_dir"
            )
        print(f"resumed {ckpt.path} at step {self.step}", flush=True)
        if not best_is_saved:  # stopped between the two saves of an evaluation: it was the best
            checkpoint.save(self.out / "best", self.model, self.saved_config, ckpt.progress)

    def leave(self) -> int:
        """Saves after a signal; the exit code."""
        if self.step and self.evaluated != self.step:
            self.save("last", None)
        saved = f", saved {self.out / 'last'}; --resume goes on" if self.step else ": nothing to save yet"
        print(f"stopped by a signal at step {self.step}{saved}", flush=True)
        return 128 + self.stop

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Asks the loop to save and stop; a second Ctrl-C interrupts at once."""
        self.stop = number
        with contextlib.suppress(OSError):  # after SIGHUP there is no terminal
            os.write(2, STOPPING)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def greeting(self) -> str:
        """The run in one line."""
        c, d = self.config, self.data
        parameters = sum(p.numel() for p in self.model.parameters())
        head = f"head {c.head}" + (f" {c.head_args}" if c.head_args else "")
        gain = f"{'learned from ' * c.learn_gain}gain {c.gain:g}"
        return (
            f"{c.name}: {parameters:,} parameters, {head}, {gain}; {d.name}: "
            f"{len(d.train):,} images, {len(d.validation):,} for validation, {len(d.test):,} for the test; "
            f"{self.steps} steps on {self.device}, {c.dtype}"
        )


def lasting(config: dict[str, Any]) -> dict[str, Any]:
    """What makes this training, of its configuration."""
    return {k: v for k, v in config.items() if k not in RESUMABLE}


def described(found: Judged) -> str:
    return f"accuracy {found.accuracy:.2f}%, NLL {found.nll:.4f}, ECE {found.ece:.4f}"


@program
def main(config: ClassifyConfig) -> int:
    out = Path(config.out_dir)
    with checkpoint.in_use(out):
        if not config.resume and checkpoint.begun(out):
            raise UserError(
                f"{out} holds a run already: --resume goes on with it, --out_dir=... starts another, or "
                "delete it"
            )
        training = Training(config)
        log = Log(out, training.step)
        print(training.greeting(), flush=True)
        on_stop(training.on_signal)
        code = training.run(log)
        log.close()
        return code


if __name__ == "__main__":
    cli(main)()
