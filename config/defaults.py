"""The one screen of defaults: what `python train.py` does unless a config file or a flag says otherwise."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from common.config import Above0, Dtype, Field, Natural, NonNegative, Number, Positive, RowName, Seed, Size
from common.errors import UserError

Decay = Annotated[float, Field(ge=0, lt=1)]
Labels = Literal["true", "hard", "soft"]
Proposals = Literal["top", "drawn"]
Optimizer = Literal["adamw", "muon", "adam", "sgd"]
Layers = Annotated[int, Field(ge=1, le=1000)]


@dataclass
class TrainConfig:
    # fmt: off
    # the run
    name: RowName = ""              # of the run; empty: the config files' names, joined
    row: RowName = ""               # of a table; empty: the first config file
    overlay: RowName = ""           # of the row; empty: the other config files, joined
    out_dir: str = ""               # empty: out/<name>
    seed: Seed = 1337               # of initialisation, data order, dropout, weight noise, label positions
    resume: bool = False            # go on from out_dir/last: --resume out/RUN
    init_from: str = ""             # weights to start from: a run, or a model of transformers
    finetune: bool = False          # trunk, sizes, tokenizer, tied and gain are init_from's
    # data
    dataset: str = "wikitext103"    # a folder of data/ with a prepare.py, or a set of images
    tokenizer: str = "gpt2"         # bpeN: N tokens of the train split; bytes, words, or a tokenizer.json
    source: str = ""                # where the text or the images are; empty: their public home
    data: str = ""                  # a prepared folder, in place of these three
    # model: GPT-2 124M with the paper's block
    trunk: str = "gpt"              # a name in TRUNKS of model.py or a lab
    trunk_args: dict = field(default_factory=dict)  # what it takes beside the sizes
    block_size: Size = 512
    n_layer: Layers = 12
    n_head: Size = 12
    n_embd: Size = 768
    dropout: Decay = 0.0
    # output head
    head: str = "softmax"           # a name in HEADS of heads/ or a lab
    head_args: dict = field(default_factory=dict)  # its constructor's arguments; --head_args.eps=0.1 sets one
    gain: Number = 1.0              # g of the logits z = g h W^T + b; softmax: one over the temperature
    learn_gain: bool = False        # g is trained, and starts at `gain`
    unigram_bias: bool = False      # the output bias starts at the log frequencies of the train tokens
    partition_bias: bool = False    # an output bias starts lower by init_from's mean log-partition
    tied: bool = True               # the projection's weights are the token embedding; False: their own
    bayesian: bool = False          # the projection's weights have a distribution
    prior_sigma: Above0 = 0.02      # their prior is N(0, prior_sigma^2)
    kl_weight: NonNegative = 1.0    # beta of eq. 2; the KL counts once per pass over the training tokens
    # labels
    labels: Labels = "true"         # the "true" token alone; or with a teacher's proposals, "hard" or "soft"
    teacher: str = "gpt2"           # as init_from, of the same tokenizer
    proposals: Proposals = "top"    # the teacher's most probable tokens, or "drawn" from its distribution
    candidates: Positive = 50       # k: tokens proposed at a position
    positions: Above0 = 0.5         # of each window: a share up to 1, a number above
    ppl_threshold: NonNegative = 0.0    # drop proposals of a higher perplexity; 0: none
    keep_true: bool = True          # False: proposals replace the true token, as the published code did
    # optimisation
    optimizer: Optimizer = "adamw"  # or "muon": of the linear layers, AdamW of all else; "adam", "sgd"
    batch_size: Size = 12           # windows a step, over all processes
    micro_batch: Natural = 0        # windows at a time; 0: a process's whole share
    max_steps: Annotated[int, Field(ge=1, lt=2**31)] = 100_000
    learning_rate: NonNegative = 6e-4   # peak; reached by a linear warm-up, then a cosine down to min_lr
    min_lr: NonNegative = 6e-5
    readout_lr: NonNegative = 0.0   # peak for the embedding and output projections; 0: learning_rate
    warmup_steps: Natural = 2000
    lr_decay_steps: Natural = 0     # end of the decay; 0: max_steps
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

    def __post_init__(self) -> None:
        """UserError for two values that cannot stand together."""
        self.out_dir = self.out_dir or f"out/{self.name}"
        if self.min_lr > self.learning_rate:
            raise UserError(f"min_lr = {self.min_lr} is above learning_rate = {self.learning_rate}")
        if 0 < self.lr_decay_steps < self.warmup_steps:
            raise UserError(f"lr_decay_steps = {self.lr_decay_steps} < warmup_steps = {self.warmup_steps}")
        if max(self.eval_steps, default=0) > self.max_steps:
            raise UserError(f"eval_steps = {self.eval_steps} reach beyond max_steps = {self.max_steps}")
        if self.readout_lr and not self.learning_rate:
            raise UserError(f"readout_lr = {self.readout_lr} is scheduled as a share of learning_rate = 0")
        if self.positions > 1 and self.positions % 1:
            raise UserError(f"positions = {self.positions}: a share up to 1, or a whole number")
        if not self.keep_true and (self.labels == "true" or self.head != "sigmoid"):
            raise UserError("keep_true = False: only the head 'sigmoid' with a teacher's labels learns so")
        if self.proposals == "drawn" and (self.ppl_threshold or not self.keep_true):
            key = "ppl_threshold" if self.ppl_threshold else "keep_true"
            raise UserError(
                f"{key} = {getattr(self, key)}: drawn proposals need all draws, and the true token"
            )
