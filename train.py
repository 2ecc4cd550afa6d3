"""Trains a GPT-2 with a chosen output head: a configuration -> checkpoints.

    python train.py config/sig_gpt.py [more configs] [--key=value ...]
    torchrun --nproc-per-node=2 train.py config/baseline.py

Configs apply in order, flags last. `python train.py --help` prints the keys (config/defaults.py). Ctrl-C,
SIGTERM or a closed terminal saves, then stops; --resume goes on, and extends a finished run with
--max_steps=MORE.
"""

import os

# A step allocates and frees hundreds of megabytes. In huge pages (where Linux has them on request) a CPU step
# spends a tenth less on page faults. torch reads this once
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

from config.defaults import TrainConfig
from runtime.door import Program
from runtime.values import registered

about = __doc__ + "\n    # heads.HEADS: " + ", ".join(registered("heads", "HEADS"))
program = Program(__name__, about, TrainConfig)

import contextlib
import math
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.profiler import record_function
from tqdm import tqdm

from augment import Labels
from data.batches import Loader, TextSource, Windows
from data.held_out import HeldOut, open_held_out, open_truth
from data.orders import MASKED
from data.prepared import kept_path, load_tokenizer, prepared, unusual
from data.tokenizers import bpe_size, tokenizer_name
from data.tokens import open_tokens
from evaluation.metrics import Recovery, perplexity
from evaluation.scoring import (
    Score,
    Window,
    described,
    document_blocks,
    document_windows,
    recover,
    score,
    training_windows,
)
from evaluation.spent import spent_by
from heads import Weights
from model import trunk_config
from runtime import checkpoint
from runtime.configurator import cli, completed
from runtime.device import autocast
from runtime.errors import UserError
from runtime.gpt2 import refuse_missing_path
from runtime.logs import Log, Tracker, duration, start_trackio, start_wandb
from runtime.memory import check_fits, training_bytes
from runtime.optimizer import iteration_dtype, load_optimizer, make_optimizer, set_learning_rate
from runtime.processes import Processes, on_stop
from runtime.profile import Profile, flops_per_token, peak_flops
from runtime.resume import (
    adopt_schedule,
    last_of,
    learning_rate,
    other_processes,
    refuse_other_run,
    saved_best,
    settle_dtype,
    start_from,
)

T = TypeVar("T")
SMALLEST_SCALE = 1.0  # of a float16 run's loss: a gradient that overflows even so is too large for float16
TRUTH_WINDOWS = 128  # of a split, in the log of a corpus whose truth is known
STOPPING = b"\nstopping after this step, to save; Ctrl-C again stops at once and loses the steps since then\n"


def derived_seed(*parts: int) -> int:
    """One 62-bit seed from several numbers: randomness is a function of (seed, step, rank), so there is no
    generator state to save."""
    out = 0
    for p in parts:
        out = (out * 0x5851F42D4C957F2D + p + 0x14057B7EF767814F) & (2**62 - 1)
    return out


class Diverged(RuntimeError):
    """The loss or the gradient is not a finite number."""


class Stopped(Exception):
    """A signal came during an evaluation."""


class Trainer:
    """A run: model, optimizer, data and where it stands."""

    def __init__(self, config: TrainConfig, procs: Processes):
        self.config, self.procs, self.out = config, procs, Path(config.out_dir)
        self.stop = 0  # the signal that asked for the end
        # a bar that is written into a file is a line for each time that it moves
        self.shows_bar = bool(config.bar and procs.main and sys.stderr and sys.stderr.isatty())
        self.step, self.tokens, self.best = 0, 0, math.inf
        self.evaluated = -1  # the last step that was
        self.log: Log | None = None  # of the first process
        self._check_before_data()
        begun = None
        if config.resume:
            last = checkpoint.load(checkpoint.find(self.out, "last"), weights=False, run=True)
            begun = last.config["dtype"]
        self.precision = settle_dtype(config.dtype, begun, procs, self.say)
        self.config = replace(config, dtype=self.precision.name)
        self._open_data()
        self._make_model()
        if self.config.resume:
            self.restore()
        self.parallel = procs.parallel(self.model)
        self.profile = Profile(config.profile and procs.main, self.out, procs.device, self.say)
        self.peak = peak_flops(procs.device, self.config.dtype)

    def _check_before_data(self) -> None:
        """UserError for what can be known before the corpus is prepared, which may take a download."""
        c = self.config
        for name in (c.init_from, c.teacher if c.labels != "true" else ""):
            if name:
                refuse_missing_path(name)
        self.check_fits(bpe_size(c.tokenizer) or 1)

    def _open_data(self) -> None:
        c, procs = self.config, self.procs
        folder = procs.first(lambda: prepared(c.dataset, c.tokenizer, c.source))
        self.train, self.val = open_tokens(folder / "train.bin"), open_held_out(folder / "validation.bin")
        self.train_text = HeldOut(self.train, open_truth(self.train))
        self.tokenizer = load_tokenizer(folder)
        self.model_config = {
            **asdict(c),
            "tokenizer": self.tokenizer.name,  # not the path of a file
            "vocab_size": self.tokenizer.vocab_size,
            "tokenizer_fingerprint": self.tokenizer.fingerprint,
            "data": kept_path(folder),
            "data_sha256": self.train.info["sha256"],
            "train_tokens": len(self.train.ids),
            "processes": procs.world,
            "curriculum_end": c.generation_order().steps if c.curriculum else None,
            "init_weights": None,
            "init_spent": None,
        }
        self.windows = Windows(self.train, c.block_size)
        Windows(self.val.tokens, c.block_size)  # which has to hold one, too
        self.check_fits(self.tokenizer.vocab_size)

    def _make_model(self) -> None:
        c, procs = self.config, self.procs
        torch.manual_seed(c.seed)
        self.model = checkpoint.build(self.model_config)
        labels = Labels(c, self.train, procs.device, self.model.head.head, procs.first)
        self.model_config |= {"teacher_sha256": labels.teacher, "teacher_weights": labels.teacher_weights}
        self.model_config["teacher_spent"] = spent_by(c.teacher) if labels.teacher_weights else None
        share = (c.micro_batch, procs.rank, procs.world)
        self.source = TextSource(
            self.windows, labels, c.batch_size, c.seed, *share, order=c.generation_order()
        )
        self.loader = Loader(self.source, procs.device)
        if c.init_from and not c.resume:
            words, self.model_config["init_weights"] = start_from(c.init_from, self.model, self.model_config)
            self.model_config["init_spent"] = spent_by(c.init_from)
            self.say(words)
        self.model.to(procs.device)
        self.optimizer = make_optimizer(
            *(self.model, c.optimizer, c.learning_rate, (c.beta1, c.beta2), c.weight_decay, c.readout_lr),
            dtype=iteration_dtype(c.dtype, procs.device),
        )
        # float16 holds nothing below 6e-8: the loss is scaled so that its gradients do not vanish there
        self.scaler = torch.amp.GradScaler(procs.device.type, enabled=c.dtype == "float16")
        if c.compile and procs.device.type == "cuda":
            self.model.compile()

    def check_fits(self, vocab_size: int) -> None:
        """UserError if a training of this size cannot fit, by what it needs at the least."""
        c, share = self.config, max(1, self.config.batch_size // self.procs.world)
        size = trunk_config({**asdict(c), "vocab_size": vocab_size})
        beside = c.bayesian + (not c.tied)
        needed = training_bytes(size, beside, min(c.micro_batch or share, share), c.batch_size)
        what = (
            f"training {size.parameters:,} parameters with batch_size = {c.batch_size}, "
            f"micro_batch = {c.micro_batch}"
        )
        lower = "n_layer, n_embd, block_size, the vocabulary or micro_batch"
        check_fits(needed, self.procs.device, what, lower)

    def restore(self) -> None:
        """Goes on from out_dir/last. UserError if it was another configuration."""
        ckpt = last_of(self.out, run=True)
        had = completed(TrainConfig, ckpt.config)
        # it started from them; whether they have changed since does not matter
        for key in ("init_weights", "init_spent", "teacher_spent"):
            self.model_config[key] = had.get(key)
        self.model_config["curriculum_end"] = end = had.get("curriculum_end")
        self.source.order = replace(self.source.order, steps=end or 1)
        self.config, extended = adopt_schedule(self.config, ckpt)
        self.model_config["lr_decay_steps"] = had["lr_decay_steps"] = self.config.lr_decay_steps
        refuse_other_run(self.out, had, self.model_config)
        checkpoint.restore(self.model, ckpt)
        load_optimizer(self.optimizer, self.scaler, ckpt)
        self.step, self.tokens, self.best = (ckpt.progress[k] for k in ("step", "tokens", "best_val_nll"))
        self.evaluated = self.step if ckpt.progress["val_nll"] is not None else -1
        others = other_processes(ckpt.config, self.procs.world)
        self.say(f"resumed {ckpt.path} at step {self.step}{extended}{others}")
        # stopped between the two saves of an evaluation: it was the best
        if self.procs.main and self.best < saved_best(self.out, run=True).get("best_val_nll", math.inf):
            self.save("best", ckpt.progress["val_nll"])

    def say(self, text: str) -> None:
        if not self.procs.main:
            return
        try:
            tqdm.write(text) if self.shows_bar else print(text, flush=True)
        except OSError:  # the terminal, or what read the lines, is gone: save and stop, as at its signal
            self.stop = self.stop or getattr(signal, "SIGHUP", signal.SIGTERM)
            # what is still to be written goes nowhere
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    # -- one step ----------------------------------------------------------

    def train_step(self) -> float:
        """One optimizer step; the mean loss over the whole batch in nats a position. Losses are summed and
        divided once, by the global count."""
        c, procs = self.config, self.procs
        torch.manual_seed(derived_seed(c.seed, 1, self.step, procs.rank))  # dropout
        set_learning_rate(self.optimizer, learning_rate(c, self.step))
        count = self.source.positions_with_loss(self.step)
        self.backward_kl()
        total = torch.zeros((), device=procs.device)
        for part, batch in enumerate(self.loader.batches(self.step)):
            # one draw of Bayesian weights a step, the same in every micro-batch and process
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
            mean = self.update(procs.sum(total) / count)
        self.step += 1
        self.tokens += c.batch_size * c.block_size
        self.profile.step()
        return mean

    def backward_kl(self) -> None:
        """The gradient of the KL of Bayesian weights, in each process: one share for each training token."""
        kl = self.model.head.projection.kl()
        if kl is not None:
            self.scaler.scale(self.config.kl_weight * kl / len(self.train.ids)).backward()

    def update(self, loss: Tensor) -> float:
        """The optimizer's step with the gradients as they are; the mean `loss` as a number.

        Diverged if the loss or the gradient is not finite. But in float16 a step whose gradient overflows is
        skipped and the loss scale halved, until it is below SMALLEST_SCALE.
        """
        self.scaler.unscale_(self.optimizer)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.grad_clip or math.inf)
        mean, norm = torch.stack((loss, norm)).tolist()  # one wait for the GPU, not two
        overflows = not math.isfinite(norm)
        if not math.isfinite(mean):
            raise Diverged(f"step {self.step + 1}: the loss is not finite (loss {mean})")
        if overflows and not self.scaler.is_enabled():
            raise Diverged(f"step {self.step + 1}: the gradient is not finite (loss {mean})")
        self.scaler.step(self.optimizer)  # nothing, if unscale_ met a gradient that is not finite
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if overflows:
            scale = self.scaler.get_scale()
            if scale < SMALLEST_SCALE:
                raise Diverged(f"step {self.step + 1}: the gradient overflows float16 at any scale")
            self.say(
                f"step {self.step + 1} is skipped: its gradient overflows float16; "
                f"the loss scale is now {scale:g}"
            )
        return mean

    # -- evaluation --------------------------------------------------------

    def evaluate(self, order: str, part: int = 0) -> Score:
        """Of so many windows of the validation split, 0: of all, see `score`. Stopped, in all processes, if a
        signal came in one."""
        c, procs = self.config, self.procs

        def work(draws: list[Weights]) -> Score:
            what = (self.model, self.val.ids, 0, draws, procs.device, c.dtype)
            return score(
                *what,
                progress=self.until_stopped,
                share=self.share,
                order=order,
                given=self.val.given,
                part=part,
            )

        s = self.shared(work)
        nll, tokens, zeros, eps_nll = procs.sums([s.nll, s.tokens, s.zeros, s.eps_nll])
        return s._replace(nll=nll, tokens=int(tokens), zeros=int(zeros), eps_nll=eps_nll)

    def other_orders(self, own: Score) -> dict[str, float]:
        """For the log, of a model of any order: its perplexity from left to right and in random order, each
        window from the start token on. `own`: the score in the order that it is trained in."""
        if self.model.trunk.config.order != "any":
            return {}
        scores = {
            name: own if name == self.config.order else self.evaluate(name, own.part)
            for name in ("left_to_right", "random")
        }
        return {f"val_ppl_{name}": perplexity(s.nll, s.tokens) for name, s in scores.items()}

    def recovery(
        self, split: HeldOut, windows: Callable[[np.ndarray], list[Window]], prefix: str = ""
    ) -> dict[str, Any]:
        """For the log, where the truth is known: how far the model is from it (metrics.Recovery).

        Above all its mass on the observed token, on valid alternatives, and on the rest: so one sees in the
        log how a head moves the alternatives. Over the first `windows` of the split, the same at every
        evaluation. `prefix`: of the names. Stopped as in `evaluate`.
        """
        (tokens, truth), c = split, self.config
        if truth is None or c.order == MASKED:  # which has no distribution of the next token
            return {}
        ids = tokens.ids
        plan = windows(np.flatnonzero(ids == truth.end))[:TRUTH_WINDOWS]

        def work(draws: list[Weights]) -> Recovery:
            what = (self.model, ids, plan[self.share], draws, self.procs.device, c.dtype)
            return recover(document_blocks(*what, progress=self.until_stopped), ids, truth)

        found = self.shared(work)
        found.set_totals(self.procs.sums(found.totals()))
        return described(found, prefix)

    @property
    def share(self) -> slice:
        """Of an evaluation's windows, those of this process."""
        return slice(self.procs.rank, None, self.procs.world)

    def shared(self, work: Callable[[list[Weights]], T]) -> T:
        """`work(draws)`, this process's share of an evaluation, with the model in eval mode.

        The draws of its weights have a generator of their own: evaluation never disturbs training. Stopped,
        in all processes, if a signal came in one.
        """
        self.model.eval()
        done = None
        try:
            draws = self.model.head.draws(self.config.eval_samples, derived_seed(self.config.seed, 3))
            with contextlib.suppress(Stopped):
                done = work(draws)
        finally:
            self.model.train()
        if any(self.procs.sums([done is None])):
            raise Stopped
        assert done is not None
        return done

    def until_stopped(self, batches: Iterable) -> Iterator:
        """An evaluation's batches; Stopped at a signal, for it can take minutes."""
        for batch in batches:
            if self.stop:
                raise Stopped
            yield batch

    def evaluate_and_save(self) -> None:
        """A signal leaves the evaluation to the resumed run."""
        with contextlib.suppress(Stopped):
            c, reads = self.config, self.model.trunk.context
            own = "" if c.order == "left_to_right" else c.order
            judged = self.evaluate(own, c.eval_windows)
            # what a run ends with can be compared with any other run
            s = self.evaluate(own) if judged.part and self.step == c.max_steps else judged
            more = self.other_orders(s)
            more |= self.recovery(self.val, lambda ends: document_windows(ends, reads))
            # the same of text that the model has been trained on shows what it has learnt by heart
            trained_on = lambda ends: training_windows(ends, c.block_size, reads)
            more |= self.recovery(self.train_text, trained_on, "train_")
            if math.isnan(s.nll):
                raise Diverged(f"step {self.step}: the validation NLL is not a number")
            self.evaluated = self.step
            if self.procs.main:
                self.judge(s, judged, more)
        self.procs.sum(torch.zeros((), device=self.procs.device))  # the others wait until it is saved

    def judge(self, s: Score, by: Score, more: dict[str, Any]) -> None:
        """Says, logs and saves what an evaluation found: the score `s`. The checkpoint is judged `by` that of
        the same windows in all evaluations."""
        nll, eps_nll = s.nll / s.tokens, s.eps_nll / s.tokens
        # a head with exact zeros has no finite NLL to be best by
        sparse = self.model.head.head.sparse
        judged = (by.eps_nll if sparse else by.nll) / by.tokens
        better, self.best = judged < self.best, min(self.best, judged)
        ppl, ppl_eps = perplexity(nll, 1), perplexity(eps_nll, 1)
        where = f", {s.part} windows of it," * bool(s.part)
        said = f"step {self.step}: validation{where} {nll:.4f} nats/token, perplexity {ppl:.2f}"
        said += f", PPL_eps {ppl_eps:.2f}" * (sparse and eps_nll != nll)
        if self.config.order != "left_to_right":
            said += f" in {self.config.order} order" if self.config.order != MASKED else " at most (NELBO)"
        for name in ("left_to_right", "random"):
            if name != self.config.order and f"val_ppl_{name}" in more:
                said += f", {name.replace('_', ' ')} {more[f'val_ppl_{name}']:.2f}"
        if by.part and not s.part:
            said += f"; its {by.part} windows of all evaluations {judged:.4f}"
        self.say(said + " (best)" * better)
        assert self.log is not None
        gain = {"gain": torch.as_tensor(self.model.head.gain).item()} if self.config.learn_gain else {}
        part = {"val_windows": s.part} if s.part else {"val_nll_windows": judged} if by.part else {}
        self.log.add(self.step, val_nll=nll, val_ppl=ppl, val_ppl_eps=ppl_eps, **part, **gain, **more)
        self.save("last", nll)  # first: from `last` alone a run goes on
        if better:
            self.save("best", nll)

    def save(self, which: str, val_nll: float | None) -> None:
        progress = {"step": self.step, "tokens": self.tokens, "val_nll": val_nll, "best_val_nll": self.best}
        state = self.optimizer.state_dict() | {"scaler": self.scaler.state_dict()}  # {} unless in float16
        optimizer = state if which == "last" else None
        checkpoint.save(self.out / which, self.model, self.model_config, progress, optimizer, self.tokenizer)

    # -- the loop ----------------------------------------------------------

    def evaluation_due(self) -> bool:
        c, step = self.config, self.step
        if step == c.max_steps:
            return True
        if c.eval_steps:
            return step in c.eval_steps
        return step > 0 and step % c.eval_interval == 0

    def run(self) -> int:
        """Trains until max_steps, a signal, or divergence; the exit code."""
        c = self.config
        self.began, self.first = time.perf_counter(), self.step
        hidden = not self.shows_bar
        self.bar = tqdm(total=c.max_steps, initial=self.step, unit="step", desc=c.name, disable=hidden)
        self.model.train()
        try:
            while True:
                if self.evaluation_due() and self.evaluated != self.step and not self.stopped():
                    self.evaluate_and_save()
                if self.stopped():
                    return self.leave()
                if self.step == c.max_steps:
                    break
                t = time.perf_counter()
                loss = self.train_step()
                self.report(loss, c.batch_size * c.block_size / (time.perf_counter() - t))
        except Diverged as e:
            self.say(f"stopped at {e}; {self.last_good()}; try a lower learning_rate or a longer warm-up")
            if self.log:  # with the configuration: there may be no checkpoint that has it
                self.log.add(self.step, diverged=str(e), config=self.model_config)
            return 1
        finally:
            self.bar.close()
            self.profile.close()
        kind = "PPL_eps" if self.model.head.head.sparse else "perplexity"
        kind += f" of at most {c.eval_windows} windows" * bool(c.eval_windows)
        self.say(
            f"done: {self.step} steps, {self.tokens:,} tokens, {duration(time.perf_counter() - self.began)}; "
            f"best validation {kind} {perplexity(self.best, 1):.2f}; {self.out}"
        )
        return 0

    def last_good(self) -> str:
        if not (self.out / "last").is_dir():
            return "there is no checkpoint yet"
        last = checkpoint.load(checkpoint.find(self.out, "last"))
        return f"the last good checkpoint is {last.path} (step {last.progress['step']})"

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Asks the loop to save and stop; a second Ctrl-C interrupts at once."""
        self.stop = number
        with contextlib.suppress(OSError):  # after SIGHUP there is no terminal
            os.write(2, STOPPING)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def leave(self) -> int:
        """Saves after a signal; the exit code."""
        if self.procs.main and self.step and self.evaluated != self.step:
            self.save("last", None)
        saved = f", saved {self.out / 'last'}; --resume goes on" if self.step else ": nothing to save yet"
        self.say(f"stopped by a signal at step {self.step}{saved}")
        return 128 + (self.stop or signal.SIGTERM)

    def close(self) -> None:
        self.loader.close()
        if self.log:
            self.log.close()

    def report(self, loss: float, speed: float) -> None:
        """A line (or the bar) and a log entry of the step just done."""
        c, lr = self.config, learning_rate(self.config, self.step - 1)
        self.bar.update(1)
        self.bar.set_postfix_str(f"loss {loss:.3f}, {speed:,.0f} tok/s")
        if self.step % c.log_interval and self.step != c.max_steps:
            return
        entry = {"loss": loss, "lr": lr, "tokens": self.tokens, "tokens_per_s": round(speed, 1)}
        said = f"step {self.step}/{c.max_steps}: loss {loss:.4f}, lr {lr:.2e}, {speed:,.0f} tok/s"
        if self.peak:
            mfu = speed * flops_per_token(self.model.trunk.config) / self.procs.world / self.peak
            entry["mfu"] = round(mfu, 4)
            said += f", MFU {mfu:.1%}"
        if not self.shows_bar:
            a_step = (time.perf_counter() - self.began) / (self.step - self.first)
            self.say(f"{said}, ETA {duration(a_step * (c.max_steps - self.step))}")
        if self.log:
            self.log.add(self.step, **entry)

    def stopped(self) -> bool:
        """Whether a signal asked any process to stop."""
        return bool(self.procs.sum(torch.tensor(self.stop, device=self.procs.device)).item())

    def order_said(self) -> str:
        c = self.config
        said = f"order {c.order}"
        if c.curriculum:
            steps = self.source.order.steps
            said += f" ({c.curriculum_share:.0%} {c.curriculum} at first, none from step {steps} on)"
        return said

    def greeting(self) -> str:
        """The run in one line."""
        c, info = self.config, self.train.info
        parameters = sum(p.numel() for p in self.model.parameters()) / 1e6
        head = f"{c.head} {c.head_args or ''}{' with Bayesian weights' if c.bayesian else ''}"
        if c.gain != 1 or c.learn_gain:
            head += f", {'learned from ' * c.learn_gain}gain {c.gain:g}"
        odd = unusual(c.dataset, info["source"])
        data = self.model_config["data"]
        data += f", prepared with {odd}, not with the standard settings" if odd else ""
        data += ", not the whole official split" if info["complete"] is False else ""
        return (
            f"{c.name}: {parameters:.1f}M parameters, head {head}, labels {c.labels}, {self.order_said()}; "
            f"{len(self.train.ids):,} training tokens ({data}), {len(self.val.ids):,} validation tokens; "
            f"{self.procs.device}, {self.precision.name} ({self.precision.reason})"
        )


def check_out(config: TrainConfig) -> None:
    """UserError if the run's folder holds what a new run would overwrite, or another run than the one to be
    resumed: known before the corpus is prepared."""
    out = Path(config.out_dir)
    if config.resume:
        had = checkpoint.load(checkpoint.find(out, "last"), weights=False, run=True).config
        # what "auto" means and where the cosine ends is settled later
        settled_later = {k for k, v in asdict(config).items() if k == "lr_decay_steps" or v == "auto"}
        now = asdict(config) | {"tokenizer": tokenizer_name(config.tokenizer)}
        given = {k: v for k, v in now.items() if k not in settled_later}
        refuse_other_run(out, {**asdict(TrainConfig()), **had}, given)
    elif checkpoint.begun(out):
        raise UserError(
            f"{out} holds a run already: --resume goes on with it, --out_dir=... starts another, or delete it"
        )


@program
def main(config: TrainConfig) -> int:
    procs = Processes(config.device)
    out = Path(config.out_dir)
    with checkpoint.in_use(out) if procs.main else contextlib.nullcontext():
        check_out(config)
        trainer = Trainer(config, procs)
        if procs.main:
            trainer.log = Log(out, trainer.step, trackers(config, trainer.model_config))
        trainer.say(trainer.greeting())
        on_stop(trainer.on_signal)
        code = trainer.run()
        trainer.close()
        procs.close()
        return code


def trackers(c: TrainConfig, settings: dict[str, Any]) -> list[Tracker]:
    """Those that the run asks for, started with its `settings`."""
    started: list[Tracker] = []
    if c.wandb:
        started.append(start_wandb(c.wandb_project, c.name, settings, Path(c.out_dir)))
    if c.trackio:
        started.append(start_trackio(c.wandb_project, c.name, settings))
    return started


if __name__ == "__main__":
    cli(main)()
