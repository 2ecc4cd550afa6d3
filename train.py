"""Trains a GPT-2 with a chosen output head, or an image classifier: a configuration -> checkpoints.

    python train.py config/baseline.py config/tiny.py [more configs] [--key=value ...]
    python train.py config/mnist.py --source=DIR                 # of labs/classes
    torchrun --nproc-per-node=2 train.py config/baseline.py

    python train.py --resume out/baseline-tiny

Configs apply in order, flags last. `python train.py --help` prints the keys (config/defaults.py). Ctrl-C,
SIGTERM or a closed terminal saves, then stops; --resume goes on. A run's folder stands for the configuration
that it began with.
"""

import os

# A step allocates and frees hundreds of megabytes. In huge pages (where Linux has them on request) a CPU step
# takes a tenth less time: fewer page faults. torch reads this once
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

import contextlib
import math
import signal
import time
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import record_function

from common.config import cli, read
from common.device import autocast, busy_machine, flops_per_token, peak_flops
from common.errors import UserError, checking
from common.log import Log, start_wandb
from common.places import commit
from config.defaults import TrainConfig
from data.batches import Loader
from heads import check_arguments, find_head
from model import LanguageModel, build, find_trunk, trunk_config
from training import checkpoint
from training.distributed import Processes, derived_seed
from training.optimizer import iteration_dtype, load_optimizer, make_optimizer
from training.run import KEPT, RESUMABLE, Progress, Run, RunConfig, difference, refuse_other_run, restore
from training.text import Evaluator, Interrupted, TextTask, TrainingTask, lab_of, with_task_defaults

USUAL = TrainConfig()
SMALLEST_SCALE = 1.0  # of a float16 run's loss: a gradient that overflows even so is too large for float16


class Diverged(RuntimeError):
    """The loss, the gradient or the validation score is not a number."""


@dataclass
class Training:
    """What a step needs, and where the run stands."""

    config: RunConfig
    procs: Processes
    task: TrainingTask
    loader: Loader
    model: LanguageModel
    parallel: nn.Module  # the model, whose gradients are means over the processes
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    progress: Progress
    loss: Tensor  # of the step just done, nats a position, on the device
    broken: Tensor  # the first step whose loss or gradient was not finite, on the device; inf: there is none


def main(argv: list[str]) -> int:
    """Trains, and leaves a run in out_dir; the exit code."""
    config = with_task_defaults(read(TrainConfig, argv, __doc__))
    out = Path(config.out_dir)
    with contextlib.ExitStack() as stack:  # closes all of it, whatever ends the training
        procs = Processes(config.device)
        stack.callback(procs.close)
        if procs.main:
            stack.enter_context(checkpoint.in_use(out))
        t = initialise(config, procs)
        stack.callback(t.loader.close)
        log = None  # of the first process
        if procs.main:
            checkpoint.remove_unfinished(out)
            tracker = start_wandb(config, vars(t.config)) if config.wandb else None
            if tracker:
                stack.push(lambda kind, *_: tracker.finish(exit_code=int(kind is not None)))
            log = stack.enter_context(contextlib.closing(Log(out, t.progress.step, tracker)))
        procs.stop_at_signals()
        try:
            return train(t, log)
        except Diverged as error:
            procs.print0(f"stopped at {error}; the last good checkpoint, if there is one, is {out / 'last'}")
            if log:  # with the configuration: there may be no checkpoint that has it
                log.add(t.progress.step, diverged=str(error), config=asdict(t.config))
            return 1


# -----------------------------------------------------------------------------
# Initialise the data, the model and the optimizer


def initialise(config: TrainConfig, procs: Processes) -> Training:
    """A new run, or the one in out_dir as its last checkpoint left it. UserError if there is another one."""
    out, device = Path(config.out_dir), procs.device
    last = Run(out, "last") if config.resume else None
    if not last and checkpoint.holds_run(out):
        from data.tokenizers import tokenizer_name

        asked = vars(config) | {"tokenizer": tokenizer_name(config.tokenizer)}  # a file's, by its content
        but = RESUMABLE | {"dtype", "name"} | ({"dataset", "tokenizer"} if config.data else set())
        other = difference(Run(out, "last").record, asked, but)
        what = f"a run with another {other}" if other else "this run"
        raise UserError(f"{out} holds {what}: --resume {out} goes on with it, --out_dir=... starts another")

    # The data, which may be a download: so names and sizes that cannot be are refused first
    with checking():
        check_arguments(find_head(config.head), config.head_args)
        find_trunk(config.trunk, config.trunk_args)
        trunk_config({"vocab_size": 1, **vars(config)})
    precision = procs.agreed_dtype(config.dtype, last.config.dtype if last else None)
    config = replace(config, dtype=precision.name)
    task: TrainingTask = (lab_of(config.dataset, config.trunk) or TextTask)(config, procs)
    recorded = {**asdict(config), "resume": False, "processes": procs.world, **task.info}
    c = RunConfig(**recorded, commit=commit())
    if last:
        refuse_other_run(last, vars(c))

    # The model
    torch.manual_seed(c.seed)
    with checking():
        model = build(vars(c))
    if c.init_from and not last:
        from training.start import start_from

        procs.print0(start_from(c, model))
    source = task.source(model, procs)  # its labels may take hours
    c = replace(c, **task.info)
    model.to(device)
    if c.compile and device.type == "cuda":
        model.compile()

    # The optimizer
    optimizer = make_optimizer(
        *(model, c.optimizer, c.learning_rate, (c.beta1, c.beta2), c.weight_decay, c.readout_lr),
        dtype=iteration_dtype(c.dtype, device),
    )
    # float16 holds nothing below 6e-8: the loss is scaled so that its gradients do not vanish there
    scaler = torch.amp.GradScaler(device.type, enabled=c.dtype == "float16")
    t = Training(
        *(c, procs, task, Loader(source, device)),
        *(model, procs.parallel(model), optimizer, scaler),
        progress=Progress(),
        loss=torch.zeros((), device=device),
        broken=torch.full((), math.inf, device=device),
    )
    if last:
        resume(t, last)

    model_keys = ("head_args", "bayesian", "gain", "learn_gain", "labels", "trunk", "trunk_args")
    short = {key: value for key, value in c.trunk_args.items() if not isinstance(value, dict)}
    shown = {**vars(c), "trunk_args": short}  # without a pretrained model's architecture, a page long
    unusual = [f"{key} {shown[key]}" for key in model_keys if shown[key] != getattr(USUAL, key)]
    parameters = f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters"
    data = f"{task.size:,} tokens of {c.dataset}"
    where = f"{device}, {precision.name} ({precision.reason})"
    procs.print0(" | ".join((c.name, parameters, f"head {c.head}", *unusual, data, where)))
    if device.type == "cpu" and (line := busy_machine()):
        procs.print0(line)
    return t


def resume(t: Training, last: Run) -> None:
    """Goes on from `last`. UserError if the teacher or the step make another run of it."""
    c, before, out = t.config, last.config, Path(t.config.out_dir)
    refuse_other_run(last, vars(c))
    for key in KEPT:
        setattr(c, key, getattr(before, key))
    restore(t.model, last.weights(), last.path)
    load_optimizer(t.optimizer, t.scaler, last)
    t.progress = p = last.progress
    if p.step > c.max_steps:
        raise UserError(f"max_steps = {c.max_steps}, but {last.path} is at step {p.step}")
    t.procs.print0(f"resumed {last.path} at step {p.step}")
    if c.commit and c.commit != (now := commit()):
        t.procs.print0(f"note: begun at commit {c.commit}, goes on at {now}")
    if t.procs.main and p.best:
        best = Run(out, "best")  # `last` where there is no such
        if best.path.stem != "best" or best.progress.best != p.best:
            # The run stopped between its two saves, or best/ is lost. The best that is left is this
            # checkpoint or, if it was saved between two evaluations, the next one
            p.best = p.criterion
            if p.best:
                save_checkpoint(t, "best")
                t.procs.print0(f"{out / 'best'} was missing or old: it is step {p.step} now")


# -----------------------------------------------------------------------------
# Training loop


def train(t: Training, log: Log | None) -> int:
    """Trains until max_steps or a signal; the exit code. Diverged if the loss does."""
    c, p, procs, out = t.config, t.progress, t.procs, Path(t.config.out_dir)
    evaluator = Evaluator(t.model, c, procs)
    peak = peak_flops(procs.device, c.dtype) if c.trunk == "gpt" else None
    start = since = p.step, time.perf_counter()
    t.model.train()
    while True:
        # Evaluate the validation split, and save
        if evaluation_due(c, p.step) and not p.val and not procs.stopped():
            with contextlib.suppress(Interrupted):  # a signal leaves it to the resumed run
                evaluate_and_save(t, evaluator, log)
            procs.barrier()  # until it is saved
            since = p.step, time.perf_counter()
        if p.step == c.max_steps or procs.stopped():
            break

        # One step of the optimizer
        train_step(t)

        # A line and a log entry; a GPU is not waited for at each step
        report = p.step % c.log_interval == 0 or evaluation_due(c, p.step)
        if report or procs.device.type == "cpu":
            loss = checked_loss(t)
        if report:
            now, lr = time.perf_counter(), learning_rate(c, p.step - 1)
            speed = c.batch_size * c.block_size * (p.step - since[0]) / (now - since[1])
            since = p.step, now
            entry = {"loss": loss, "lr": lr, "tokens": p.tokens, "tokens_per_s": round(speed, 1)}
            line = f"step {p.step}/{c.max_steps} | loss {loss:.4f} | lr {lr:.1e} | {speed:,.0f} tok/s"
            if peak:
                mfu = speed * flops_per_token(t.model.trunk.config) / procs.world / peak
                entry["mfu"] = round(mfu, 4)
                line += f" | MFU {mfu:.1%}"
            left = (now - start[1]) / (p.step - start[0]) * (c.max_steps - p.step)
            procs.print0(f"{line} | ETA {timedelta(seconds=round(left))}")
            if log:
                log.add(p.step, **entry)

    # The end
    if not procs.stopped():
        took, best = timedelta(seconds=round(time.perf_counter() - start[1])), values_line(p.best)
        if t.model.head.head.sparse and isinstance(t.task, TextTask):  # a sparse head has no finite NLL
            best = best.replace("nll", "log PPL_eps")
        procs.print0(f"done | {p.step} steps | {p.tokens:,} tokens | {took} | best {best} | {out}")
        with contextlib.suppress(Interrupted):
            if procs.main:
                t.task.test(evaluator, p.best)
            return 0
    if p.step and not p.val:
        checked_loss(t)
        if procs.main:
            save_checkpoint(t, "last")
        procs.barrier()  # torchrun kills all soon after the first has left
    saved = f"--resume {out} goes on" if p.step else "nothing to save yet"
    procs.print0(f"stopped by a signal | step {p.step} | {saved}")
    return 128 + (procs.signal or signal.SIGTERM)


def evaluation_due(c: TrainConfig, step: int) -> bool:
    """Whether the validation split is scored after `step` steps."""
    due = step in c.eval_steps if c.eval_steps else step > 0 and step % c.eval_interval == 0
    return due or step == c.max_steps


def learning_rate(c: TrainConfig, step: int) -> float:
    """Linear warm-up to learning_rate over warmup_steps, then a half cosine down to min_lr at
    lr_decay_steps."""
    end = c.lr_decay_steps or c.max_steps
    if step < c.warmup_steps:
        return c.learning_rate * (step + 1) / c.warmup_steps
    ratio = min(1.0, (step - c.warmup_steps) / max(1, end - c.warmup_steps))
    return c.min_lr + 0.5 * (1 + math.cos(math.pi * ratio)) * (c.learning_rate - c.min_lr)


def train_step(t: Training) -> Tensor:
    """One optimizer step; the mean loss over the whole batch in nats a position, on the device. Losses are
    summed and divided once, by the global count. Diverged if a gradient overflows float16 at SMALLEST_SCALE.
    """
    c, p, procs, source = t.config, t.progress, t.procs, t.loader.source
    torch.manual_seed(derived_seed(c.seed, 1, p.step, procs.rank))  # dropout
    for group in t.optimizer.param_groups:
        group["lr"] = learning_rate(c, p.step) * group.get("scale", 1.0)
    count = source.positions_with_loss(p.step)
    kl = t.model.head.projection.kl()  # None unless the weights are Bayesian
    if kl is not None:  # each position bears its share: a pass over the training tokens counts the KL once
        t.scaler.scale(c.kl_weight * kl / t.task.size).backward()
    total = torch.zeros((), device=procs.device)
    for part, batch in enumerate(t.loader.batches(p.step)):
        # draws Bayesian weights and sampled softmax's tokens: the same in every micro-batch and process
        noise = torch.Generator(procs.device).manual_seed(derived_seed(c.seed, 2, p.step))
        more_to_come = part < source.parts - 1
        with procs.no_sync(t.parallel, more_to_come), procs.others_there():
            with autocast(procs.device, c.dtype):
                loss, _ = t.parallel(batch.tokens, batch.targets, batch.positions, noise)
            with record_function("trunk, backward"):
                # `parallel` takes the mean over the processes, not the sum: so times their number
                t.scaler.scale(loss / count * procs.world).backward()
        total += loss.detach()
    t.loss, step = procs.sum(total) / count, p.step + 1

    # The optimizer's step. In float16 one whose gradient overflows is skipped, and the loss scale halved
    with record_function("optimizer"):
        t.scaler.unscale_(t.optimizer)
        norm = nn.utils.clip_grad_norm_(t.model.parameters(), c.grad_clip or math.inf)
        finite = t.loss.isfinite() & (norm.isfinite() | t.scaler.is_enabled())
        t.broken = torch.where(finite, t.broken, t.broken.clamp(max=step))
        scale = t.scaler.get_scale()  # 1 unless in float16
        t.scaler.step(t.optimizer)  # nothing, if unscale_ met a gradient that is not finite
        t.scaler.update()
        t.optimizer.zero_grad(set_to_none=True)
    if (halved := t.scaler.get_scale()) < scale:
        if halved < SMALLEST_SCALE:
            raise Diverged(f"step {step}: the gradient overflows float16 at any scale")
        procs.print0(
            f"step {step} is skipped: its gradient overflows float16; the loss scale is now {halved:g}"
        )
    p.step, p.tokens = step, p.tokens + c.batch_size * c.block_size
    p.val, p.criterion = {}, {}
    return t.loss


def checked_loss(t: Training) -> float:
    """The loss of the step just done. Diverged if a loss or a gradient was not finite, then or before."""
    loss, broken = torch.stack((t.loss.float(), t.broken)).tolist()  # one wait for a GPU
    if broken <= t.progress.step:
        raise Diverged(f"step {broken:.0f}: the loss or its gradient is not finite (loss {loss})")
    return loss


# -----------------------------------------------------------------------------
# Evaluation and saving


def evaluate_and_save(t: Training, evaluator: Evaluator, log: Log | None) -> None:
    """Scores the validation split, and saves `last` and, if none was better, `best`. Interrupted at a
    signal; Diverged if the score is no number."""
    p = t.progress
    evaluation = t.task.evaluate(evaluator, last=p.step == t.config.max_steps)
    if any(map(math.isnan, evaluation.values.values())):
        raise Diverged(f"step {p.step}: the validation NLL is not a number")
    p.val, p.criterion = evaluation.values, evaluation.criterion
    better = not p.best or [*p.criterion.values()] < [*p.best.values()]
    p.best = p.criterion if better else p.best
    if log:  # in the first process
        shown = {key: value for key, value in evaluation.logged.items() if key.startswith("val_")}
        t.procs.print0(f"step {p.step} | {values_line(shown)}{' | best' * better}")
        learned = {"gain": torch.as_tensor(t.model.head.gain).item()} if t.config.learn_gain else {}
        log.add(p.step, **evaluation.logged, **learned)
        save_checkpoint(t, "last")  # first: runs resume from it
        if better:
            save_checkpoint(t, "best")


def values_line(values: dict[str, Any]) -> str:
    """ "val_nll 3.1416 | val_ppl 23.14": five digits of each number."""
    return " | ".join(f"{k} {v:.5g}" if isinstance(v, float) else f"{k} {v}" for k, v in values.items())


def save_checkpoint(t: Training, which: str) -> None:
    """Writes `which`, "last" or "best", into out_dir; the optimizer's state goes with "last" alone."""
    scaler = t.scaler.state_dict()  # {} unless in float16
    optimizer = t.optimizer.state_dict() | {"scaler": scaler} if which == "last" else None
    out = Path(t.config.out_dir) / which
    checkpoint.save(out, t.model, t.config, t.progress, optimizer, t.task.tokenizer)


if __name__ == "__main__":
    cli(main)
