"""The one screen of defaults: what `python train.py` does unless a config file or a flag says otherwise."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from common.config import configure
from common.errors import UserError
from common.files import read_json
from common.names import RowName, check_row_name
from common.places import heads, translated, trunks
from common.values import Dtype, Field, Natural, NonNegative, Positive, Seed
from training.task import settled

if TYPE_CHECKING:
    from data.labels import LabelSettings

Decay = Annotated[float, Field(ge=0, lt=1)]
Labels = Literal["true", "hard", "soft"]
Optimizer = Literal["adamw", "muon", "adam", "sgd"]


@dataclass
class TrainConfig:
    # fmt: off
    # the run
    name: str = ""                  # of the run; empty: the config files' names, joined
    row: RowName = ""               # of a table; empty: the first config file
    overlay: RowName = ""           # of the row; empty: the other config files, joined
    out_dir: str = ""               # empty: out/<name>
    seed: Seed = 1337               # of initialisation, data order, dropout, weight noise, label positions
    resume: bool = False            # go on from out_dir/last: --resume out/RUN
    init_from: str = ""             # weights to start from: a run, GPT-2's hub name or folder, nanoGPT's file
    # data
    dataset: str = "wikitext103"    # a folder of data/ with a prepare.py, or a set of images
    tokenizer: str = "gpt2"         # bpeN: N tokens of the train split; bytes, words, or a tokenizer.json
    source: str = ""                # where the text or the images are; empty: their public home
    # model: GPT-2 124M with the paper's block
    trunk: str = "gpt"              # a name in TRUNKS of model.py or a lab
    trunk_args: dict = field(default_factory=dict)  # what it takes beside the sizes
    block_size: Positive = 512
    n_layer: Positive = 12
    n_head: Positive = 12
    n_embd: Positive = 768
    dropout: Decay = 0.0
    # output head
    head: str = "softmax"           # a name in HEADS of heads/ or a lab
    head_args: dict = field(default_factory=dict)  # its constructor's arguments; --head_args.eps=0.1 sets one
    gain: float = 1.0               # g of the logits z = g h W^T + b; softmax: one over the temperature
    learn_gain: bool = False        # g is trained, and starts at `gain`
    unigram_bias: bool = False      # the output bias starts at the log frequencies of the train tokens
    tied: bool = True               # the projection's weights are the token embedding; False: their own
    bayesian: bool = False          # the projection's weights have a distribution
    prior_sigma: float = 0.02       # their prior is N(0, prior_sigma^2)
    kl_weight: NonNegative = 1.0    # beta of eq. 2; the KL counts once per pass over the training tokens
    # labels
    labels: Labels = "true"         # the "true" token alone; or with a teacher's proposals, "hard" or "soft"
    teacher: str = "gpt2"           # as init_from, of the same tokenizer
    candidates: Positive = 50       # k: tokens proposed at a position
    positions: float = 0.5          # of each window: a share up to 1, a number above
    ppl_threshold: NonNegative = 0.0    # drop proposals of a higher perplexity; 0: none
    ppl_form: Literal["prefix", "full"] = "prefix"  # perplexity up to the proposal, or of the whole window
    label_weight: NonNegative = 1.0     # a proposal's label: this, times the teacher's probability if soft
    keep_true: bool = True          # False: proposals replace the true token, as the published code did
    label_store: bool = True        # proposals computed once and stored beside the token file; False: online
    # optimisation
    optimizer: Optimizer = "adamw"  # or "muon": of the linear layers, AdamW of all else; "adam", "sgd"
    batch_size: Positive = 12       # windows a step, over all processes
    micro_batch: Natural = 0        # windows at a time; 0: a process's whole share
    max_steps: Positive = 100_000
    learning_rate: NonNegative = 6e-4   # peak; reached by a linear warm-up, then a cosine down to min_lr
    min_lr: NonNegative = 6e-5
    readout_lr: NonNegative = 0.0   # peak for the embedding and output projections; 0: learning_rate
    warmup_steps: Natural = 2000
    lr_decay_steps: Natural = 0     # end of the cosine; 0: max_steps
    weight_decay: NonNegative = 0.1     # of matrices; biases, LayerNorms and Bayesian weights have none
    beta1: Decay = 0.9
    beta2: Decay = 0.95
    grad_clip: NonNegative = 1.0    # norm of the whole gradient; 0: off
    # evaluation and logs
    eval_interval: Positive = 1000  # steps between evaluations of the validation split, with a checkpoint
    eval_steps: list[Positive] = field(default_factory=list)  # instead: at these steps, and the last one
    eval_windows: Natural = 0       # of it, evenly spread, in all evaluations but the last; 0: all of them
    eval_samples: Positive = 4      # weight draws of a Bayesian projection in them
    log_interval: Positive = 10     # steps between lines of the terminal and of log.jsonl
    wandb: bool = False             # also log to Weights & Biases; offline when it cannot be reached
    wandb_project: str = "nanoheads"
    # machine
    device: str = "auto"            # cuda where there is one, else cpu; "mps" if asked for
    dtype: Dtype = "auto"           # of matrix products; auto: bfloat16 if the device has it, see device.py
    compile: bool = True            # torch.compile the trunk and the head's arithmetic (on a GPU only)
    # fmt: on

    @classmethod
    def recorded(cls, out: Path) -> dict[str, Any]:
        """The keys that the run in the folder `out` was begun with: the folder stands for a config file."""
        last = next((p for p in (out / "last", out / "last.old") if p.is_dir()), out / "last")
        config = translated(read_json(last / "config.json", {"tokenizer": str}))
        known = {f.name: config[f.name] for f in fields(cls) if f.name in config}
        if "-" in known["tokenizer"]:  # of a file, whose content names it
            known["tokenizer"] = str(last / "tokenizer.json")
        return known | {"out_dir": str(out)}

    @classmethod
    def read(cls, argv: list[str]) -> "TrainConfig":
        """The configuration of a command line: config files, then --key=value flags. UserError naming every
        value that cannot work."""
        config = configure(cls, argv)
        config.out_dir = config.out_dir or f"out/{config.name}"
        _refuse(config.problems())
        config = settled(config)  # which imports a lab, and with it torch
        _refuse(config._problems_of_model())
        return config

    def check(self) -> None:
        """UserError naming every value that cannot work."""
        _refuse(self.problems())
        _refuse(self._problems_of_model())

    def label_settings(self) -> "LabelSettings":
        from data.labels import LabelSettings  # and with it torch

        return LabelSettings(self.candidates, self.positions, self.ppl_threshold, self.ppl_form, self.seed)

    def problems(self) -> Iterator[str]:
        """Values that cannot stand together, or that no dictionary has."""
        yield from _refusals(partial(check_row_name, self.name))
        if self.trunk not in (known := trunks()):
            yield f"trunk = {self.trunk!r}: use one of {', '.join(known)}"
        if self.head not in (known := heads()):
            yield f"unknown head {self.head!r}; known: {', '.join(known)}"
        if self.min_lr > self.learning_rate:
            yield (
                f"min_lr = {self.min_lr}: the rate would rise from learning_rate = {self.learning_rate}: "
                f"give --min_lr={self.learning_rate / 10:g}, say"
            )
        if 0 < self.lr_decay_steps < self.warmup_steps:
            yield f"lr_decay_steps = {self.lr_decay_steps} < warmup_steps = {self.warmup_steps}: make it 0"
        if self.readout_lr and not self.learning_rate:
            yield f"readout_lr = {self.readout_lr} with learning_rate = 0: its schedule is a share of it"
        if not (0 < self.positions <= 1 or (self.positions > 1 and self.positions % 1 == 0)):
            yield f"positions = {self.positions}: give a share in (0, 1] or a whole number of positions"
        if self.labels != "true" and self.label_weight > 1:
            yield f"label_weight = {self.label_weight}: a label value is at most 1"
        if self.labels != "true":
            yield from _refusals(partial(self.label_settings().count, self.block_size))
        if self.labels != "true" and not self.keep_true and self.head != "sigmoid":
            yield "keep_true = False: leave it out; only the head 'sigmoid' learns without a true token"

    def _problems_of_model(self) -> Iterator[str]:
        """What the trunk and the head themselves refuse. Their import takes seconds, so this comes last."""
        from heads import find_head

        yield from _refusals(self._next_token, self._smallest_head)
        if self.labels != "true" and not self._next_token():
            yield f"labels = {self.labels!r}: trunk = {self.trunk!r} does not predict the next token"
        if self.labels != "true" and not find_head(self.head).multi_label:
            yield (
                f"labels = {self.labels!r}: the head {self.head!r} takes the true token alone; use "
                "labels = 'true' or a multi-label head such as 'sigmoid'"
            )

    def _next_token(self) -> bool:
        """Whether the trunk predicts the token after each. ValueError if it cannot be made."""
        from model import Trunk, sketch

        return type(sketch(vars(self))).arrange is Trunk.arrange

    def _smallest_head(self) -> None:
        """ValueError if the head cannot be made."""
        import torch

        from heads import make_head

        weight = torch.nn.Parameter(torch.zeros(1, 1))  # of a width of 1
        beside = (self.bayesian, self.prior_sigma, self.gain, self.learn_gain)
        make_head(self.head, 257, weight, self.head_args, *beside)


def _refuse(problems: Iterator[str]) -> None:
    if text := "; ".join(problems):
        raise UserError(text)


def _refusals(*checks: Callable[[], object]) -> Iterator[str]:
    """What the checks that fail say."""
    for check in checks:
        try:
            check()
        except ValueError as error:
            yield str(error)
