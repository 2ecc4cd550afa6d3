"""Trains a GPT-2 with a chosen output head: a configuration -> checkpoints.

    python train.py config/sig_gpt.py [more configs] [--key=value ...]
    torchrun --nproc-per-node=2 train.py config/baseline.py

Configs apply in order, flags last. `python train.py --help` prints the keys. Ctrl-C, SIGTERM or a closed terminal saves, then stops; --resume goes on,
and extends a finished run with --max_steps=MORE.
"""

import contextlib
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    from runtime import configurator

    configurator.quiet_imports()

# A step allocates and frees hundreds of megabytes. In huge pages (where Linux has them on request) a CPU step spends a tenth less on page faults; torch reads this once
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

import augment
from data.batches import Windows, batch_indices
from data.grammar.truth import open_truth
from data.tokens import TokenFile, bpe_size, kept_path, load_tokenizer, open_tokens, prepared, unusual
from evaluation.metrics import perplexity
from evaluation.scoring import Score, described, document_blocks, document_windows, recover, score
from heads import HEADS, Head, Targets, make_head
from model import GPTConfig, LanguageModel
from runtime import checkpoint
from runtime.configurator import check_seed, cli, configure, help_text, wants_help
from runtime.device import DTYPES, Precision, autocast, choose_dtype, emulation
from runtime.errors import UserError
from runtime.gpt2 import from_gpt2, refuse_missing_path
from runtime.logs import Log, duration, start_wandb
from runtime.memory import check_fits, training_bytes
from runtime.names import check_row_name
from runtime.processes import Processes, on_stop
from runtime.profile import Profile, flops_per_token, peak_flops


@dataclass
class TrainConfig:
    # fmt: off
    # the run
    name: str = ""                  # row of the table; empty: the config files' names, joined
    out_dir: str = ""               # empty: out/<name>
    seed: int = 1337                # of initialisation, data order, dropout, weight noise, label positions
    resume: bool = False            # go on from out_dir/last
    init_from: str = ""             # a GPT-2 hub name or folder, or one of our runs: weights to start from instead of random ones
    # data
    dataset: str = "wikitext103"    # a folder of data/ with a prepare.py
    tokenizer: str = "gpt2"         # GPT-2's BPE, or bpeN: one of N tokens trained on the train split; "words" for the grammar
    source: str = ""                # where prepare.py finds the text; empty: its public home
    # model: GPT-2 124M with the paper's block
    block_size: int = 512
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    dropout: float = 0.0
    # output head
    head: str = "softmax"           # a name in heads.HEADS
    head_args: dict = field(default_factory=dict)  # its constructor's arguments; --head_args.eps=0.1 sets one
    bayesian: bool = False          # the projection's weights have a distribution
    prior_sigma: float = 0.02       # their prior is N(0, prior_sigma^2)
    kl_weight: float = 1.0          # beta of eq. 2; the KL counts once per pass over the training tokens
    # labels
    labels: str = "true"            # the true token alone, or with the teacher's proposals as "hard" or "soft" labels
    teacher: str = "gpt2"           # a hub name, a transformers folder, or one of our runs with the same vocabulary
    candidates: int = 50            # k: tokens proposed at a position
    positions: float = 0.5          # of each window: a share up to 1, a number above
    ppl_threshold: float = 0.0      # drop proposals of a higher perplexity; 0: none
    ppl_form: str = "prefix"        # perplexity up to the proposal, or of the "full" window with it put in
    label_weight: float = 1.0       # value of a proposal's label: this, times the teacher's probability if soft
    keep_true: bool = True          # False: proposals replace the true token, as the published code did
    label_store: bool = True        # proposals computed once and stored beside the token file; False: online
    # optimisation
    batch_size: int = 12            # windows a step, over all processes
    micro_batch: int = 0            # windows at a time; 0: a process's whole share
    max_steps: int = 100_000
    learning_rate: float = 6e-4     # peak; reached by a linear warm-up, then a cosine down to min_lr
    min_lr: float = 6e-5
    warmup_steps: int = 2000
    lr_decay_steps: int = 0         # end of the cosine; 0: max_steps
    weight_decay: float = 0.1       # of matrices; biases, LayerNorms and log sigma have none
    beta1: float = 0.9
    beta2: float = 0.95
    grad_clip: float = 1.0          # norm of the whole gradient; 0: off
    # evaluation and logs
    eval_interval: int = 1000       # steps between evaluations of the whole validation split, each with a checkpoint
    eval_samples: int = 4           # weight draws of a Bayesian projection in them
    log_interval: int = 1           # steps between lines of the terminal and of log.jsonl
    bar: bool = False               # a progress bar instead of lines
    wandb: bool = False             # also log to Weights & Biases; offline when it cannot be reached
    wandb_project: str = "nanoheads"
    # machine
    device: str = "auto"            # cuda where there is one, else cpu; "mps" if asked for
    dtype: str = "auto"             # of matrix products; auto: bfloat16 if the device has it, see device.py
    compile: bool = True            # torch.compile the trunk and the head's arithmetic (on a GPU only)
    profile: bool = False           # after three steps, say where the next three spend their time, and write out_dir/trace.json
    # fmt: on

    def check(self) -> None:
        """ValueError naming every value that cannot work."""
        bad = []
        for key in ("batch_size", "max_steps", "eval_interval", "eval_samples", "log_interval"):
            if getattr(self, key) < 1:
                bad.append(f"{key} = {getattr(self, key)}: must be at least 1")
        for key in (
            "learning_rate",
            "min_lr",
            "weight_decay",
            "grad_clip",
            "kl_weight",
            "warmup_steps",
            "lr_decay_steps",
            "micro_batch",
            "label_weight",
        ):
            if not 0 <= getattr(self, key) < math.inf:
                bad.append(f"{key} = {getattr(self, key)}: must be at least 0 and finite")
        for key in ("beta1", "beta2"):
            if not 0 <= getattr(self, key) < 1:
                bad.append(f"{key} = {getattr(self, key)}: must be in [0, 1)")
        if self.labels not in ("true", "hard", "soft"):
            bad.append(f"labels = {self.labels!r}: use 'true', 'hard' or 'soft'")
        elif self.labels != "true" and self.head in HEADS and not HEADS[self.head].multi_label:
            bad.append(
                f"labels = {self.labels!r}: the head {self.head!r} takes the true token alone; use labels = 'true' or a multi-label head such as 'sigmoid'"
            )
        if self.labels != "true" and self.label_weight > 1:
            bad.append(f"label_weight = {self.label_weight}: a label value is at most 1")
        for attempt in (
            lambda: check_row_name(self.name),
            lambda: check_seed(self.seed),
            lambda: choose_dtype(self.dtype, torch.device("cpu")),
            self.settings,
            lambda: GPTConfig(1, self.block_size, self.n_layer, self.n_head, self.n_embd, self.dropout),
            lambda: make_head(
                self.head,
                257,
                torch.nn.Parameter(torch.zeros(1, 1)),
                self.head_args,
                self.bayesian,
                self.prior_sigma,
            ),
        ):
            try:
                attempt()
            except ValueError as e:
                bad.append(str(e))
        if bad:
            raise UserError("; ".join(bad))

    def settings(self) -> augment.Settings:
        return augment.Settings(self.candidates, self.positions, self.ppl_threshold, self.ppl_form, self.seed)


# keys that a resumed run may change: none of them changes what a step computes, but for the rounding of another device
RESUMABLE = {
    "resume",
    "out_dir",
    "max_steps",
    "eval_interval",
    "log_interval",
    "bar",
    "wandb",
    "wandb_project",
    "device",
    "compile",
    "source",
    "label_store",
    "profile",
}

SMALLEST_SCALE = 1.0  # of a float16 run's loss: a gradient that overflows even so is too large for float16
TRUTH_WINDOWS = 128  # of the validation split, in the log of a corpus whose truth is known


def learning_rate(config: TrainConfig, step: int) -> float:
    """Linear warm-up to learning_rate over warmup_steps, then a half cosine down to min_lr at lr_decay_steps."""
    end = config.lr_decay_steps or config.max_steps
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    ratio = min(1.0, (step - config.warmup_steps) / max(1, end - config.warmup_steps))
    return config.min_lr + 0.5 * (1 + math.cos(math.pi * ratio)) * (config.learning_rate - config.min_lr)


def derived_seed(*parts: int) -> int:
    """One 62-bit seed from several numbers: randomness is a function of (seed, step, rank), so there is no generator state to save."""
    out = 0
    for p in parts:
        out = (out * 0x5851F42D4C957F2D + p + 0x14057B7EF767814F) & (2**62 - 1)
    return out


def make_optimizer(model: LanguageModel, config: TrainConfig) -> torch.optim.AdamW:
    named = list(model.named_parameters())
    decays = lambda name, p: p.dim() >= 2 and not name.endswith("log_sigma")
    groups = [
        {"params": [p for n, p in named if decays(n, p)], "weight_decay": config.weight_decay},
        {"params": [p for n, p in named if not decays(n, p)], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=(config.beta1, config.beta2), fused=True)


def settle_dtype(config: TrainConfig, procs: Processes, say: Callable[[str], None]) -> Precision:
    """What config.dtype means: rank 0 decides for all processes, by its own device. With "auto" a resumed run
    keeps the dtype it was begun in. `say` is told on rank 0 what a dtype costs that is emulated there.
    """
    if not procs.main:
        return Precision(DTYPES[procs.agreed(0)], "rank 0 says so")
    chosen = choose_dtype(config.dtype, procs.device)
    remedy = f"--dtype=auto takes {choose_dtype('auto', procs.device).name}"
    if config.resume and config.dtype == "auto":
        begun = checkpoint.load(checkpoint.find(config.out_dir, "last"), weights=False, run=True).config
        chosen = choose_dtype(begun["dtype"], procs.device)._replace(reason="as the run was begun")
        remedy = "the run was begun in it, and keeps it"
    if price := emulation(chosen.name, procs.device):
        say(f"{price}; {remedy}")
    procs.agreed(DTYPES.index(chosen.name))
    return chosen


def load_optimizer(
    optimizer: torch.optim.AdamW, scaler: torch.amp.GradScaler, ckpt: checkpoint.Checkpoint
) -> None:
    """The moments and steps of a checkpoint, and its loss scale. ValueError if they are not those of this
    model."""
    try:
        state = dict(ckpt.optimizer)
        scaler.load_state_dict(state.pop("scaler", {}))
        optimizer.load_state_dict(state)
        fits = all(
            state[k].shape == p.shape and state[k].dtype == p.dtype and state["step"].numel() == 1
            for p, state in optimizer.state.items()
            for k in ("exp_avg", "exp_avg_sq")
        )
    except Exception as e:  # torch trusts what it is given, and fails in many ways
        raise UserError(
            f"the checkpoint {ckpt.path} cannot be read: optimizer.pt is not of this model "
            f"({type(e).__name__}); use another one or train again"
        ) from e
    if not fits:
        raise UserError(
            f"the checkpoint {ckpt.path} cannot be read: optimizer.pt is not of this model; use "
            f"another one or train again"
        )


def refuse_other_run(out: Path, had: dict[str, Any], now: dict[str, Any]) -> None:
    """ValueError if the run in `out`, whose configuration is `had`, is not the one that `now` asks to
    resume."""
    free = RESUMABLE | {"data", "teacher_weights"}
    odd = [k for k, v in now.items() if k not in free and had.get(k) != v]
    if odd:
        changes = ", ".join(f"{k} was {had.get(k)!r} and is now {now[k]!r}" for k in odd)
        raise UserError(f"cannot resume {out}: {changes}")


class Labels:
    """What the loss is trained towards: (window indices, x, y) -> Targets, the head's own where no teacher proposes any. `online`: the teacher computes
    them at each step, on the device."""

    def __init__(self, config: TrainConfig, tokens: TokenFile, procs: Processes, head: Head | None = None):
        self.config, self.head, self.source, self.teacher, self.teacher_weights = (
            config,
            head,
            None,
            None,
            None,
        )
        if config.labels != "true":
            info = tokens.info
            teacher = augment.Teacher(
                config.teacher,
                info["tokenizer"],
                info["fingerprint"],
                info["vocab_size"],
                config.block_size,
                procs.device,
                config.dtype,
            )
            self.teacher, self.teacher_weights = teacher.fingerprint, teacher.weights_sha256
            build = lambda: augment.build_store(tokens, teacher, config.block_size, config.settings())
            self.source = (
                procs.first(build) if config.label_store else augment.Online(teacher, config.settings())
            )
        self.online = isinstance(self.source, augment.Online)

    def targets(self, indices, x: Tensor, y: Tensor) -> Targets:
        if self.source is None:
            return self.head.targets(x, y)
        c = self.config
        return augment.make_targets(
            y, self.source.proposals(indices, x, y), c.labels == "soft", c.label_weight, c.keep_true
        )


class Diverged(RuntimeError):
    """The loss or the gradient is not a finite number."""


class Stopped(Exception):
    """A signal came during an evaluation."""


class Trainer:
    """A run: model, optimizer, data and where it stands."""

    def __init__(self, config: TrainConfig, procs: Processes):
        self.config, self.procs, self.out = config, procs, Path(config.out_dir)
        # before the corpus is prepared
        for name in (config.init_from, *([config.teacher] if config.labels != "true" else [])):
            if name:
                refuse_missing_path(name)
        self.check_fits(bpe_size(config.tokenizer) or 1)
        self.precision = settle_dtype(config, procs, self.say)
        self.config = config = replace(config, dtype=self.precision.name)
        folder = procs.first(lambda: prepared(config.dataset, config.tokenizer, config.source))
        self.train, self.val = open_tokens(folder / "train.bin"), open_tokens(folder / "validation.bin")
        self.truth = open_truth(self.val)  # None for a corpus whose distributions nobody knows
        self.tokenizer = load_tokenizer(folder)
        self.model_config = {
            **asdict(config),
            "vocab_size": self.tokenizer.vocab_size,
            "tokenizer_fingerprint": self.tokenizer.fingerprint,
            "data": kept_path(folder),
            "data_sha256": self.train.info["sha256"],
            "train_tokens": len(self.train.ids),
        }
        self.windows = Windows(self.train, config.block_size)
        if config.batch_size % (procs.world * (config.micro_batch or 1)):
            raise UserError(
                f"batch_size = {config.batch_size} is not a multiple of processes x micro_batch = {procs.world} x {config.micro_batch or 1}"
            )
        self.check_fits(self.tokenizer.vocab_size)
        torch.manual_seed(config.seed)
        self.model = checkpoint.build(self.model_config)
        self.labels = Labels(config, self.train, procs, self.model.head.head)
        self.model_config |= {
            "teacher_sha256": self.labels.teacher,
            "teacher_weights": self.labels.teacher_weights,
            "init_weights": None,
        }
        self.stop = 0  # the signal that asked for the end
        self.step, self.tokens, self.best, self.evaluated = (
            0,
            0,
            math.inf,
            -1,
        )  # evaluated: the last step that was
        if config.init_from and not config.resume:
            self.start_from(config.init_from)
        self.model.to(procs.device)
        self.optimizer = make_optimizer(self.model, config)
        # float16 holds nothing below 6e-8: the loss is scaled so that its gradients do not vanish there
        self.scaler = torch.amp.GradScaler(procs.device.type, enabled=config.dtype == "float16")
        if config.resume:
            self.restore()
        self.trunk = self.model.trunk
        if config.compile and procs.device.type == "cuda":
            self.trunk = torch.compile(self.trunk)
            self.model.head.compile()
        self.log: Log | None = None  # of the first process
        self.profile = Profile(config.profile and procs.main, self.out, procs.device, self.say)
        # Whatever torch does in the loader's thread it does with one thread of its own: a second team of them beside the model's slows down both, for
        # good. torch gives that number to each thread that has none yet, so this one has to have its own first
        torch.get_num_threads()
        self.loader, self.ahead = (
            ThreadPoolExecutor(1, "batches", torch.set_num_threads, (1,)),
            {},
        )  # ahead: (step, micro-batch) -> its future
        self.peak = peak_flops(procs.device, config.dtype)

    def check_fits(self, vocab_size: int) -> None:
        """ValueError if a training of this size cannot fit, by what it needs at the least."""
        c, share = self.config, max(1, self.config.batch_size // self.procs.world)
        size = GPTConfig(vocab_size, c.block_size, c.n_layer, c.n_head, c.n_embd)
        needed = training_bytes(size, c.bayesian, min(c.micro_batch or share, share), c.batch_size)
        check_fits(
            needed,
            self.procs.device,
            f"training {size.parameters:,} parameters with batch_size = "
            f"{c.batch_size}, micro_batch = {c.micro_batch}",
            "n_layer, n_embd, block_size, the vocabulary or micro_batch",
        )

    def start_from(self, name: str) -> None:
        """Copies every tensor of the same name and shape from another run or a GPT-2; says what stays as initialised."""
        if checkpoint.is_run(name):
            ckpt = checkpoint.load(checkpoint.find(name))
            if ckpt.config["tokenizer_fingerprint"] != self.model_config["tokenizer_fingerprint"]:
                raise UserError(
                    f"init_from = {name!r} was trained with another tokenizer ({ckpt.config['tokenizer']}) than {self.model_config['tokenizer']}"
                )
            weights, self.model_config["init_weights"] = ckpt.weights, checkpoint.weights_digest(ckpt.path)
        else:
            trunk = from_gpt2(name)
            if trunk.config.vocab_size != self.model_config["vocab_size"]:
                raise UserError(
                    f"init_from = {name!r} has a vocabulary of {trunk.config.vocab_size} tokens, the corpus {self.model_config['vocab_size']}: prepare it with GPT-2's tokenizer"
                )
            weights = {f"trunk.{k}": p.detach() for k, p in trunk.named_parameters()}
        own = dict(self.model.named_parameters())
        wpe, block = weights.get("trunk.wpe.weight"), self.config.block_size
        if wpe is not None and len(wpe) > block:  # a longer block serves a shorter one
            weights["trunk.wpe.weight"] = wpe[:block]
        fits = [k for k, p in own.items() if k in weights and weights[k].shape == p.shape]
        if not all(k in fits for k in own if k.startswith("trunk.")):
            raise UserError(
                f"init_from = {name!r} has another size than this configuration: give its n_layer, n_head, n_embd, block_size and vocabulary"
            )
        with torch.no_grad():
            for k in fits:
                own[k].copy_(weights[k])
        self.say(
            f"started from {name}"
            + (
                f"; as initialised: {', '.join(sorted(own.keys() - set(fits)))}"
                if len(fits) < len(own)
                else ""
            )
        )

    def restore(self) -> None:
        """Goes on from out_dir/last. ValueError if it was another configuration."""
        path = checkpoint.find(self.out, "last")
        if not (path / "optimizer.pt").is_file():
            raise UserError(
                f"{path} is a checkpoint without optimizer.pt, and {self.out} has no other to resume: give the run's `last` back, or start again in another --out_dir"
            )
        ckpt = checkpoint.load(path, optimizer=True, run=True)
        # it started from them; whether they have changed since does not matter
        self.model_config["init_weights"] = ckpt.config.get("init_weights")
        extended = self.adopt_schedule(ckpt)
        refuse_other_run(self.out, ckpt.config, self.model_config)
        checkpoint.restore(self.model, ckpt)
        load_optimizer(self.optimizer, self.scaler, ckpt)
        self.step, self.tokens, self.best = (ckpt.progress[k] for k in ("step", "tokens", "best_val_nll"))
        self.evaluated = self.step if ckpt.progress["val_nll"] is not None else -1
        self.say(f"resumed {ckpt.path} at step {self.step}{extended}")
        # stopped between the two saves of an evaluation: it was the best
        if self.procs.main and self.best < self.saved_best():
            self.save("best", ckpt.progress["val_nll"])

    def saved_best(self) -> float:
        """What the checkpoint `best` is best by; inf where there is none."""
        which = [self.out / w for w in ("best", "best.old") if (self.out / w).is_dir()]
        if not which:
            return math.inf
        return checkpoint.load(which[0], weights=False, run=True).progress["best_val_nll"]

    def adopt_schedule(self, ckpt: checkpoint.Checkpoint) -> str:
        """A resumed run keeps the end of its cosine. Only a finished one can be given more steps after that end, or another end; the words that say so.

        ValueError for a change that would make the steps done so far those of another schedule.
        """
        had, c = ckpt.config, self.config
        step, end = ckpt.progress["step"], had["lr_decay_steps"] or had["max_steps"]
        finished = step >= had["max_steps"]
        if c.max_steps < step:
            raise UserError(
                f"max_steps = {c.max_steps}, but the run is at step {step} already: give at least as many, or another --out_dir"
            )
        given = bool(c.lr_decay_steps)
        new = c.lr_decay_steps if given else end if finished or had["lr_decay_steps"] else c.max_steps
        if new != end and not finished:
            key = "lr_decay_steps" if given or had["lr_decay_steps"] else "max_steps"
            raise UserError(
                f"{key} = {new}, but the run's learning rate decays until {key} = {end}: keep it (--lr_decay_steps={end} with another --max_steps "
                f"goes on at min_lr after it), or finish the run, which can then be extended"
            )
        explicit = given or had["lr_decay_steps"] or new != c.max_steps
        self.config = replace(c, lr_decay_steps=new if explicit else 0)
        self.model_config["lr_decay_steps"] = had["lr_decay_steps"] = self.config.lr_decay_steps
        if not finished or (c.max_steps == had["max_steps"] and new == end):
            return ""
        if new != end:
            was = learning_rate(replace(c, lr_decay_steps=end), step)
            schedule = f"its cosine ended at step {end} and now ends at step {new}, so the learning rate jumps from {was:.2e} to {learning_rate(self.config, step):.2e}"
        elif end > step:
            schedule = f"its cosine goes on to step {end}"
        else:
            schedule = f"its cosine was over at step {end}, the further steps run at min_lr = {c.min_lr:g} (--lr_decay_steps gives it another end)"
        return f"; it was finished and goes on to step {c.max_steps}: {schedule}"

    def say(self, text: str) -> None:
        if not self.procs.main:
            return
        try:
            tqdm.write(text) if self.config.bar else print(text, flush=True)
        except OSError:  # the terminal, or what read the lines, is gone: save and stop, as at its signal
            self.stop = self.stop or getattr(signal, "SIGHUP", signal.SIGTERM)
            # what is still to be written goes nowhere
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    # -- one step ----------------------------------------------------------

    def load(self, step: int, number: int) -> tuple:
        """(window indices, x, y, Targets or None where the teacher has yet to compute them) of a micro-batch: a pure function of (seed, step, rank)."""
        c, procs = self.config, self.procs
        mine = batch_indices(len(self.windows), c.batch_size, step, c.seed)[procs.rank :: procs.world]
        size = c.micro_batch or len(mine)
        indices = mine[number * size : (number + 1) * size]
        x, y = self.windows.get(indices)
        targets = None if self.labels.online else self.labels.targets(indices, x, y)
        if procs.device.type == "cuda":  # pinned, so that the copy need not wait
            # contiguous: a view, such as x, would be copied through memory that is not pinned
            pin = lambda t: t.contiguous().pin_memory()
            x, targets = pin(x), targets and Targets(*map(pin, targets))
        return indices, x, y, targets

    def micro_batches(self) -> Iterator[tuple[Tensor, Targets]]:
        """(x, targets) of this step on the device. A thread loads the one to come while the model works on this one."""
        c, procs = self.config, self.procs
        count = c.batch_size // procs.world // (c.micro_batch or c.batch_size // procs.world)
        for number in range(count):
            with self.profile.phase("data and labels"):
                now = self.ahead.pop((self.step, number), None) or self.loader.submit(
                    self.load, self.step, number
                )
                after = (self.step, number + 1) if number + 1 < count else (self.step + 1, 0)
                self.ahead = {after: self.loader.submit(self.load, *after)}
                indices, x, y, targets = now.result()
                if targets is None:
                    targets = self.labels.targets(indices, x, y)
                x, targets = (
                    x.to(procs.device, non_blocking=True),
                    Targets(*(t.to(procs.device, non_blocking=True) for t in targets)),
                )
            yield x, targets

    def train_step(self) -> float:
        """One optimizer step; the mean loss over the whole batch in nats a token. Losses are summed and divided once, by the global count."""
        c, procs, phase = self.config, self.procs, self.profile.phase
        torch.manual_seed(derived_seed(c.seed, 1, self.step, procs.rank))  # dropout
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(c, self.step)
        count = c.batch_size * c.block_size
        total = torch.zeros((), device=procs.device)
        for x, targets in self.micro_batches():
            # one draw of Bayesian weights a step, the same in every micro-batch and process
            noise = torch.Generator(procs.device).manual_seed(derived_seed(c.seed, 2, self.step))
            with autocast(procs.device, c.dtype):
                with phase("trunk, forward"):
                    hidden = self.trunk(x)
                with phase("head, loss and gradient"):
                    loss, _ = self.model.head.loss(hidden, targets, noise)
            with phase("trunk, backward"):
                self.scaler.scale(loss / count).backward()
            total += loss.detach()
        kl = self.model.head.projection.kl()
        if kl is not None:  # a KL per data set: one share for each training token
            self.scaler.scale(c.kl_weight * kl / len(self.train.ids) / procs.world).backward()
        if procs.world > 1:
            for p in self.model.parameters():
                procs.sum(p.grad)
        with phase("optimizer"):
            mean = self.update(procs.sum(total) / count)
        self.step += 1
        self.tokens += count
        self.profile.step()
        return mean

    def update(self, loss: Tensor) -> float:
        """The optimizer's step with the gradients as they are; the mean `loss` as a number. Diverged if the loss or
        the gradient is not finite; but in float16 a step whose gradient overflows is skipped and the loss scale
        halved, until it is below SMALLEST_SCALE."""
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

    def evaluate(self) -> Score:
        """Of the whole validation split. Uses generators of its own: evaluation never disturbs training."""
        c = self.config
        self.model.eval()
        draws = self.model.head.draws(c.eval_samples, derived_seed(c.seed, 3))
        s = score(self.model, self.val.ids, 0, draws, self.procs.device, c.dtype, progress=self.until_stopped)
        self.model.train()
        return s

    def recovery(self) -> dict[str, Any]:
        """For the log, where the truth is known: how far the model is from it (metrics.Recovery), above all its mean mass on the observed token, on valid
        alternatives, and on the rest. Over the first windows of the validation split, the same at every evaluation: how a head moves the alternatives is read off the log."""
        if self.truth is None:
            return {}
        c, ids = self.config, self.val.ids
        plan = document_windows(np.flatnonzero(ids == self.truth.machine.end), c.block_size)[:TRUTH_WINDOWS]
        self.model.eval()
        draws = self.model.head.draws(c.eval_samples, derived_seed(c.seed, 3))
        found = recover(
            document_blocks(
                self.model, ids, plan, draws, self.procs.device, c.dtype, progress=self.until_stopped
            ),
            ids,
            self.truth,
        )
        self.model.train()
        return described(found)

    def until_stopped(self, batches):
        """An evaluation's batches; Stopped at a signal, for it can take minutes."""
        for batch in batches:
            if self.stop:
                raise Stopped
            yield batch

    def save(self, which: str, val_nll: float | None) -> None:
        progress = {"step": self.step, "tokens": self.tokens, "val_nll": val_nll, "best_val_nll": self.best}
        state = self.optimizer.state_dict() | {"scaler": self.scaler.state_dict()}  # {} unless in float16
        optimizer = state if which == "last" else None
        checkpoint.save(self.out / which, self.model, self.model_config, progress, optimizer, self.tokenizer)

    def evaluate_and_save(self) -> None:
        """On the first process, while the others wait. A signal leaves the evaluation to the resumed run."""
        if self.procs.main:
            with contextlib.suppress(Stopped):
                s, recovery = self.evaluate(), self.recovery()
                nll = s.nll / s.count
                judged = (
                    s.eps_nll / s.count if self.model.head.head.sparse else nll
                )  # a head with exact zeros has no finite NLL to be best by
                if math.isnan(nll):
                    raise Diverged(f"step {self.step}: the validation NLL is not a number")
                better, self.best, self.evaluated = judged < self.best, min(self.best, judged), self.step
                self.say(
                    f"step {self.step}: validation {nll:.4f} nats/token, perplexity {perplexity(nll, 1):.2f}"
                    + (f", PPL_eps {perplexity(judged, 1):.2f}" if judged != nll else "")
                    + (" (best)" if better else "")
                )
                self.log.add(
                    self.step,
                    val_nll=nll,
                    val_ppl=perplexity(nll, 1),
                    val_ppl_eps=perplexity(s.eps_nll, s.count),
                    **recovery,
                )
                self.save("last", nll)  # first: from `last` alone a run goes on
                if better:
                    self.save("best", nll)
        else:
            self.evaluated = self.step
        self.procs.sum(torch.zeros((), device=self.procs.device))

    # -- the loop ----------------------------------------------------------

    def run(self) -> int:
        """Trains until max_steps, a signal, or divergence; the exit code."""
        c = self.config
        self.began, self.first = time.perf_counter(), self.step
        self.bar = tqdm(
            total=c.max_steps,
            initial=self.step,
            unit="step",
            desc=c.name,
            disable=not (c.bar and self.procs.main),
        )
        self.model.train()
        try:
            while True:
                due = self.step % c.eval_interval == 0 or self.step == c.max_steps
                if due and self.step and self.evaluated != self.step and not self.stopped():
                    self.evaluate_and_save()
                if self.stopped():
                    return self.leave()
                if self.step == c.max_steps:
                    break
                t = time.perf_counter()
                loss = self.train_step()
                self.report(loss, c.batch_size * c.block_size / (time.perf_counter() - t))
        except Diverged as e:
            last = checkpoint.find(self.out, "last") if (self.out / "last").is_dir() else None
            good = (
                f"the last good checkpoint is {last} (step {checkpoint.load(last).progress['step']})"
                if last
                else "there is no checkpoint yet"
            )
            self.say(f"stopped at {e}; {good}; try a lower learning_rate or a longer warm-up")
            return 1
        finally:
            self.bar.close()
            self.profile.close()
        self.say(
            f"done: {self.step} steps, {self.tokens:,} tokens, {duration(time.perf_counter() - self.began)}; best validation {'PPL_eps' if self.model.head.head.sparse else 'perplexity'} {perplexity(self.best, 1):.2f}; {self.out}"
        )
        return 0

    def on_signal(self, number: int, frame) -> None:
        """Asks the loop to save and stop; a second Ctrl-C interrupts at once."""
        self.stop = number
        with contextlib.suppress(OSError):  # after SIGHUP there is no terminal
            os.write(
                2,
                b"\nstopping after this step, to save; Ctrl-C again stops at once and loses the steps since the last save\n",
            )
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def leave(self) -> int:
        """Saves after a signal; the exit code."""
        if self.procs.main and self.step and self.evaluated != self.step:
            self.save("last", None)
        self.say(
            f"stopped by a signal at step {self.step}"
            + (f", saved {self.out / 'last'}; --resume goes on" if self.step else ": nothing to save yet")
        )
        return 128 + (self.stop or signal.SIGTERM)

    def close(self) -> None:
        self.loader.shutdown(cancel_futures=True)
        if self.log:
            self.log.close()

    def report(self, loss: float, speed: float) -> None:
        """A line (or the bar) and a log entry of the step just done."""
        c, lr = self.config, learning_rate(self.config, self.step - 1)
        self.bar.update(1)
        self.bar.set_postfix_str(f"loss {loss:.3f}, {speed:,.0f} tok/s")
        if self.step % c.log_interval and self.step != c.max_steps:
            return
        mfu = (
            speed * flops_per_token(self.model.trunk.config) / self.procs.world / self.peak
            if self.peak
            else None
        )
        if not c.bar:
            eta = (time.perf_counter() - self.began) / (self.step - self.first) * (c.max_steps - self.step)
            self.say(
                f"step {self.step}/{c.max_steps}: loss {loss:.4f}, lr {lr:.2e}, {speed:,.0f} tok/s{f', MFU {mfu:.1%}' if mfu else ''}, ETA {duration(eta)}"
            )
        if self.log:
            self.log.add(
                self.step,
                loss=loss,
                lr=lr,
                tokens=self.tokens,
                tokens_per_s=round(speed, 1),
                **({"mfu": round(mfu, 4)} if mfu else {}),
            )

    def stopped(self) -> bool:
        """Whether a signal asked any process to stop."""
        return bool(
            self.procs.sum(torch.tensor(self.stop, device=self.procs.device)).item()
            if self.procs.world > 1
            else self.stop
        )


def read_arguments(argv: list[str]) -> TrainConfig:
    config = configure(TrainConfig, argv)
    config.out_dir = config.out_dir or f"out/{config.name}"
    config.check()
    return config


def main(argv: list[str]) -> int:
    if wants_help(argv):
        print(__doc__, help_text(TrainConfig), "\n    # heads.HEADS: " + ", ".join(HEADS), sep="\n")
        return 0
    config = read_arguments(argv)
    procs = Processes(config.device)
    out = Path(config.out_dir)
    with checkpoint.in_use(out) if procs.main else open(os.devnull):
        if (
            any((out / which).is_dir() for which in ("last", "last.old", "best", "best.old"))
            and not config.resume
        ):
            raise UserError(
                f"{out} holds a run already: --resume goes on with it, --out_dir=... starts another, or delete it"
            )
        # before the corpus, which may take a download: with other words it would be another one
        if config.resume:
            had = checkpoint.load(checkpoint.find(out, "last"), weights=False, run=True).config
            # what "auto" means and where the cosine ends is settled later: settle_dtype, adopt_schedule
            given = {k: v for k, v in asdict(config).items() if k != "lr_decay_steps" and v != "auto"}
            refuse_other_run(out, had, given)
        trainer = Trainer(config, procs)
        c, precision = trainer.model_config, trainer.precision
        if procs.main:
            trainer.log = Log(
                out,
                trainer.step,
                start_wandb(config.wandb_project, config.name, c, out) if config.wandb else None,
            )
        odd = unusual(config.dataset, trainer.train.info["source"])
        standard = f", prepared with {odd}, not with the standard settings" if odd else ""
        trainer.say(
            f"{config.name}: {sum(p.numel() for p in trainer.model.parameters()) / 1e6:.1f}M parameters, head {config.head} {config.head_args or ''}"
            f"{' with Bayesian weights' if config.bayesian else ''}, labels {config.labels}; {c['train_tokens']:,} training tokens ({c['data']}{standard}"
            f"{', not the whole official split' if trainer.train.info['complete'] is False else ''}), "
            f"{len(trainer.val.ids):,} validation tokens; "
            f"{procs.device}, {precision.name} ({precision.reason})"
        )
        on_stop(trainer.on_signal)
        code = trainer.run()
        trainer.close()
        procs.close()
        return code


if __name__ == "__main__":
    cli(main)()
