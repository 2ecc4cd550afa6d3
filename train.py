"""Trains a GPT-2 with a chosen output head, or an image classifier: a configuration -> checkpoints.

    python train.py config/baseline.py config/tiny.py [more configs] [--key=value ...]
    python train.py config/mnist.py --source=DIR
    torchrun --nproc-per-node=2 train.py config/baseline.py

    python train.py --resume out/baseline-tiny

Configs apply in order, flags last. `python train.py --help` prints the keys (config/defaults.py). Ctrl-C,
SIGTERM or a closed terminal saves, then stops; --resume goes on. A run's folder stands for the configuration
that it began with.
"""

import os

# A step allocates and frees hundreds of megabytes. In huge pages (where Linux has them on request) a CPU step
# spends a tenth less on page faults. torch reads this once
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

import contextlib
import math
import signal
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.profiler import record_function

from common.config import cli, completed, read
from common.device import autocast, flops_per_token, peak_flops
from common.errors import UserError
from common.log import Log, duration, start_wandb
from common.places import registered
from config.defaults import TrainConfig
from data.batches import Loader, windows_at_a_time
from data.tokenizers import tokenizer_name
from heads import head_changed, head_digest, named_head
from model import sketch
from training import checkpoint
from training.distributed import Processes, end_with_table, on_stop
from training.evaluator import Evaluator, Interrupted, derived_seed
from training.gpt2 import refuse_missing_path
from training.optimizer import iteration_dtype, load_optimizer, make_optimizer, set_learning_rate
from training.resume import (
    agreed_dtype,
    last_of,
    learning_rate,
    other_parts,
    refuse_other_run,
    saved_best,
    start_from,
)
from training.spent import spent_by
from training.task import settled, task_of

SMALLEST_SCALE = 1.0  # of a float16 run's loss: a gradient that overflows even so is too large for float16
STOPPING = b"\nstopping after this step, to save; Ctrl-C again stops at once and loses the steps since then\n"


class Diverged(RuntimeError):
    """The loss or the gradient is not a finite number."""


def main(argv: list[str]) -> int:
    """Trains, and leaves a run in out_dir; the exit code."""
    about = f"{__doc__}\n    # heads: {', '.join(registered('heads', 'HEADS', 'heads'))}"
    config = settled(read(TrainConfig, argv, about))
    end_with_table()
    procs = Processes(config.device)
    out = Path(config.out_dir)
    with checkpoint.in_use(out) if procs.main else contextlib.nullcontext():
        refuse_before_data(config, procs)
        trainer = Trainer(config, procs)
        if procs.main:
            tracker = start_wandb(config, trainer.model_config) if config.wandb else None
            trainer.log = Log(out, trainer.step, tracker)
        trainer.say(trainer.greeting())
        on_stop(trainer.on_signal)
        code = trainer.run()
        trainer.close()
        procs.close()
        return code


def refuse_before_data(config: TrainConfig, procs: Processes) -> None:
    """UserError for what can be known before the corpus is prepared, which may take a download."""
    out = Path(config.out_dir)
    if config.resume:
        last = last_of(out, optimizer=False)
        now = asdict(config) | {"tokenizer": tokenizer_name(config.tokenizer)}
        known = {k: v for k, v in now.items() if v != "auto"}  # which is settled later
        refuse_other_run(out, completed(TrainConfig, last.config), known)
    elif checkpoint.begun(out):
        raise UserError(
            f"{out} holds a run already: --resume {out} goes on with it, --out_dir=... starts another, or "
            "delete it"
        )
    named_head(config.head, 257, config.head_args)
    sketch(vars(config))
    windows_at_a_time(config.batch_size, config.micro_batch, procs.world)
    begins_from = "" if config.resume else config.init_from  # a resumed run reads those weights no more
    for name in (begins_from, config.teacher if config.labels != "true" else ""):
        if name:
            refuse_missing_path(name)


class Trainer:
    """A run: model, optimizer, task and where it stands."""

    def __init__(self, config: TrainConfig, procs: Processes):
        self.procs, self.out = procs, Path(config.out_dir)
        self.signal = 0  # the signal that asked for the end
        self.log: Log | None = None  # of the first process
        begun_in = last_of(self.out, optimizer=False).config["dtype"] if config.resume else None
        self.precision = agreed_dtype(config.dtype, begun_in, procs, self.say)
        self.config = replace(config, dtype=self.precision.name)
        self.task = task_of(config.dataset)(self.config, procs)
        self.step, self.tokens = 0, 0
        self.evaluated = -1  # the last step that was
        self.best = tuple(math.inf for _ in self.task.judged_by)  # Evaluation.judged of the best so far
        self._make_model()
        self._make_optimizer()
        if config.resume:
            self._restore()
        self.parallel = procs.parallel(self.model)
        self.evaluator = Evaluator(self.model, self.config, procs, lambda: bool(self.signal))
        self.peak = peak_flops(procs.device, self.config.dtype) if config.trunk == "gpt" else None

    def _make_model(self) -> None:
        c, procs = self.config, self.procs
        self.model_config = {
            **asdict(c),
            "resume": False,  # a table compares it, and a start from this configuration is none
            **self.task.info,
            "processes": procs.world,
            "init_weights": None,
            "init_spent": None,
            "head_sha256": head_digest(c.head),
        }
        torch.manual_seed(c.seed)
        self.model = checkpoint.build(self.model_config)
        if c.init_from and not c.resume:
            sentence, self.model_config["init_weights"] = start_from(
                c.init_from, self.model, self.model_config
            )
            self.model_config["init_spent"] = spent_by(c.init_from)
            self.say(sentence)
        self.source = self.task.source(self.model, procs)  # last: its labels may take hours
        self.model_config |= self.task.info
        self.loader = Loader(self.source, procs.device)
        self.model.to(procs.device)
        if c.compile and procs.device.type == "cuda":
            self.model.compile()

    def _make_optimizer(self) -> None:
        c, device = self.config, self.procs.device
        self.optimizer = make_optimizer(
            *(self.model, c.optimizer, c.learning_rate, (c.beta1, c.beta2), c.weight_decay, c.readout_lr),
            dtype=iteration_dtype(c.dtype, device),
        )
        # float16 holds nothing below 6e-8: the loss is scaled so that its gradients do not vanish there
        self.scaler = torch.amp.GradScaler(device.type, enabled=c.dtype == "float16")
        self.loss = torch.zeros((), device=device)
        self.broken = torch.full((), math.inf, device=device)

    def _restore(self) -> None:
        """Goes on from out_dir/last. UserError if it was another configuration."""
        last = last_of(self.out)
        before = completed(TrainConfig, last.config)
        # the run started from these; whether they have changed since is no reason to refuse it
        kept = {"init_weights", "init_spent", "teacher_spent", "head_sha256"} & self.model_config.keys()
        self.model_config |= {key: before.get(key) for key in kept}
        refuse_other_run(self.out, before, self.model_config)
        checkpoint.restore(self.model, last)
        load_optimizer(self.optimizer, self.scaler, last)
        progress = last.progress
        self.step, self.tokens, self.best = progress["step"], progress["tokens"], self._judged(progress)
        if self.step > self.config.max_steps:
            raise UserError(f"max_steps = {self.config.max_steps}, but {last.path} is at step {self.step}")
        self.evaluated = self.step if progress["val_nll"] is not None else -1
        changed = other_parts(before, self.procs.world, self.config.micro_batch) + head_changed(before)
        self.say(f"resumed {last.path} at step {self.step}{changed}")
        saved, values = saved_best(self.out), self._judged(progress, "val_")
        if self.procs.main and self.best < self._judged(saved):
            if saved or self._judged(progress, "judged_") == self.best:  # stopped between its two saves
                self.save("best", values, self.best)
            else:
                self.best = self._judged({})
                self.say(f"{self.out} has no checkpoint `best`: the next evaluation begins a new one")

    def _judged(self, progress: dict[str, Any], which: str = "best_val_") -> tuple[float, ...]:
        """What the best checkpoint was judged by, when `progress` was written down; or this one ("val_")."""
        values = (progress.get(f"{which}{name}") for name in self.task.judged_by)
        return tuple(math.inf if value is None else value for value in values)

    def greeting(self) -> str:
        """The run in one line."""
        c = self.config
        parameters = sum(p.numel() for p in self.model.parameters()) / 1e6
        head = f"{c.head} {c.head_args or ''}".strip() + " with Bayesian weights" * c.bayesian
        if c.gain != 1 or c.learn_gain:
            head += f", {'learned from ' * c.learn_gain}gain {c.gain:g}"
        return (
            f"{c.name}: {parameters:.1f}M parameters, head {head}, {self.task.greeting(self.source)}; "
            f"{self.procs.device}, {self.precision.name} ({self.precision.reason})"
        )

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Asks the loop to save and stop; a second Ctrl-C interrupts at once."""
        self.signal = number
        with contextlib.suppress(OSError):  # after SIGHUP there is no terminal
            os.write(2, STOPPING)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    # -- the loop ----------------------------------------------------------

    def run(self) -> int:
        """Trains until max_steps, a signal, or divergence; the exit code."""
        c = self.config
        self.began, self.first = time.perf_counter(), self.step
        self.reported = self.first, self.began
        self.model.train()
        try:
            while True:
                if self.evaluation_due() and self.evaluated != self.step and not self.stopped():
                    self.evaluate_and_save()
                if self.stopped():
                    return self.leave()
                if self.step == c.max_steps:
                    return self.finish()
                self.train_step()
                due = self.step % c.log_interval == 0 or self.evaluation_due()
                if due or self.procs.device.type == "cpu":  # a GPU is not waited for at each step
                    loss = self.checked_loss()
                if due:
                    self.report(loss)
        except Diverged as e:
            return self.give_up(e)
        except Interrupted:  # the test
            return self.leave()

    def evaluation_due(self) -> bool:
        c, step = self.config, self.step
        due = step in c.eval_steps if c.eval_steps else step > 0 and step % c.eval_interval == 0
        return due or step == c.max_steps

    def stopped(self) -> bool:
        """Whether a signal asked any process to stop."""
        return self.procs.sums([self.signal]) != [0]

    def evaluate_and_save(self) -> None:
        """A signal leaves the evaluation to the resumed run."""
        with contextlib.suppress(Interrupted):
            evaluation = self.task.evaluate(self.evaluator, last=self.step == self.config.max_steps)
            if any(map(math.isnan, evaluation.values)):
                raise Diverged(f"step {self.step}: the validation NLL is not a number")
            self.evaluated = self.step
            self.reported = self.step, time.perf_counter()
            if self.log:  # in the first process
                better, self.best = evaluation.judged < self.best, min(self.best, evaluation.judged)
                self.say(f"step {self.step}: {evaluation.sentence}{' (best)' * better}")
                learned = {"gain": torch.as_tensor(self.model.head.gain).item()}
                self.log.add(self.step, **evaluation.logged, **(learned if self.config.learn_gain else {}))
                self.save("last", evaluation.values, evaluation.judged)  # first: runs resume from it
                if better:
                    self.save("best", evaluation.values, evaluation.judged)
        self.procs.wait()  # until it is saved

    def save(
        self, which: str, values: tuple[float, ...] | None, judged: tuple[float, ...] | None = None
    ) -> None:
        """`values` and `judged`: of the Evaluation of this step; None where there was none."""
        progress: dict[str, Any] = {"step": self.step, "tokens": self.tokens}
        for i, name in enumerate(self.task.judged_by):
            progress |= {f"val_{name}": values and values[i], f"judged_{name}": judged and judged[i]}
            progress[f"best_val_{name}"] = self.best[i]
        scaler = self.scaler.state_dict()  # {} unless in float16
        optimizer = self.optimizer.state_dict() | {"scaler": scaler} if which == "last" else None
        tokenizer = self.task.tokenizer
        checkpoint.save(self.out / which, self.model, self.model_config, progress, optimizer, tokenizer)

    def train_step(self) -> Tensor:
        """One optimizer step; the mean loss over the whole batch in nats a position, on the device. Losses
        are summed and divided once, by the global count."""
        c, procs = self.config, self.procs
        torch.manual_seed(derived_seed(c.seed, 1, self.step, procs.rank))  # dropout
        set_learning_rate(self.optimizer, learning_rate(c, self.step))
        count = self.source.positions_with_loss(self.step)
        kl = self.model.head.projection.kl()  # of Bayesian weights: one share for each training token
        if kl is not None:
            self.scaler.scale(c.kl_weight * kl / self.task.size).backward()
        total = torch.zeros((), device=procs.device)
        for part, batch in enumerate(self.loader.batches(self.step)):
            # the draws of Bayesian weights of a step, the same in every micro-batch and process
            noise = torch.Generator(procs.device).manual_seed(derived_seed(c.seed, 2, self.step))
            more_to_come = part < self.source.parts - 1
            with procs.alone(self.parallel, more_to_come), procs.others_there():
                with autocast(procs.device, c.dtype):
                    loss, _ = self.parallel(batch.tokens, batch.targets, batch.positions, noise)
                with record_function("trunk, backward"):
                    # times their number, for `parallel` takes the mean over the processes
                    self.scaler.scale(loss / count * procs.world).backward()
            total += loss.detach()
        with record_function("optimizer"):
            self.loss = procs.sum(total) / count
            self.update()
        self.step += 1
        self.tokens += c.batch_size * c.block_size
        return self.loss

    def update(self) -> None:
        """The optimizer's step with the gradients as they are. `broken` is then the first step whose loss or
        gradient was not finite, on the device.

        In float16 a step whose gradient overflows is skipped and the loss scale halved. Diverged if it falls
        below SMALLEST_SCALE.
        """
        self.scaler.unscale_(self.optimizer)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.grad_clip or math.inf)
        finite = self.loss.isfinite() & (norm.isfinite() | self.scaler.is_enabled())
        self.broken = torch.where(finite, self.broken, self.broken.clamp(max=self.step + 1))
        scale = self.scaler.get_scale()  # 1 unless in float16
        self.scaler.step(self.optimizer)  # nothing, if unscale_ met a gradient that is not finite
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if (halved := self.scaler.get_scale()) < scale:
            if halved < SMALLEST_SCALE:
                raise Diverged(f"step {self.step + 1}: the gradient overflows float16 at any scale")
            self.say(
                f"step {self.step + 1} is skipped: its gradient overflows float16; "
                f"the loss scale is now {halved:g}"
            )

    def checked_loss(self) -> float:
        """The loss of the step just done. Diverged if a loss or a gradient was not finite, then or before."""
        loss, broken = torch.stack((self.loss.float(), self.broken)).tolist()  # one wait for a GPU
        if broken <= self.step:
            raise Diverged(f"step {broken:.0f}: the loss or its gradient is not finite (loss {loss})")
        return loss

    def report(self, loss: float) -> None:
        """A line and a log entry of the step just done; the speed is that of the steps since the last one."""
        c, lr, now = self.config, learning_rate(self.config, self.step - 1), time.perf_counter()
        speed = c.batch_size * c.block_size * (self.step - self.reported[0]) / (now - self.reported[1])
        self.reported = self.step, now
        entry = {"loss": loss, "lr": lr, "tokens": self.tokens, "tokens_per_s": round(speed, 1)}
        line = f"step {self.step}/{c.max_steps}: loss {loss:.4f}, lr {lr:.2e}, {speed:,.0f} tok/s"
        if self.peak:
            mfu = speed * flops_per_token(self.model.trunk.config) / self.procs.world / self.peak
            entry["mfu"] = round(mfu, 4)
            line += f", MFU {mfu:.1%}"
        a_step = (now - self.began) / (self.step - self.first)
        self.say(f"{line}, ETA {duration(a_step * (c.max_steps - self.step))}")
        if self.log:
            self.log.add(self.step, **entry)

    # -- the end -----------------------------------------------------------

    def finish(self) -> int:
        """Says what the run has come to, and tests the best checkpoint; the exit code."""
        best = self.task.best(self.best, self.model)
        self.say(
            f"done: {self.step} steps, {self.tokens:,} tokens, {duration(time.perf_counter() - self.began)}; "
            f"best validation {best}; {self.out}"
        )
        if self.procs.main:
            self.task.test(self.evaluator, self.best, self.say)
        return 0

    def leave(self) -> int:
        """Saves after a signal; the exit code."""
        if self.step and self.evaluated != self.step:
            if self.step > self.first:
                self.checked_loss()
            if self.procs.main:
                self.save("last", None)
            self.procs.wait()  # torchrun kills all soon after the first has left
        saved = f", saved {self.out / 'last'}; --resume goes on" if self.step else ": nothing to save yet"
        self.say(f"stopped by a signal at step {self.step}{saved}")
        return 128 + (self.signal or signal.SIGTERM)

    def give_up(self, error: Diverged) -> int:
        """Names the last good checkpoint; the exit code."""
        good = "there is no checkpoint yet"
        if checkpoint.begun(self.out):
            last = checkpoint.load(checkpoint.find(self.out, "last"), weights=False, classifier=True)
            good = f"the last good checkpoint is {last.path} (step {last.progress['step']})"
        self.say(f"stopped at {error}; {good}; try a lower learning_rate or a longer warm-up")
        if self.log:  # with the configuration: there may be no checkpoint that has it
            self.log.add(self.step, diverged=str(error), config=self.model_config)
        return 1

    def close(self) -> None:
        self.loader.close()
        if self.log:
            self.log.close()

    def say(self, text: str) -> None:
        """Prints `text`, in the first process."""
        if not self.procs.main:
            return
        try:
            print(text, flush=True)
        except OSError:  # the terminal, or what read the lines, is gone: save and stop, as at its signal
            self.signal = self.signal or getattr(signal, "SIGHUP", signal.SIGTERM)
            # what is still to be written goes nowhere
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    cli(main)
