"""What judges a training: the text of its validation split, or what a lab trains on (labs/LAB/task.py)."""

import contextlib
import importlib
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch

from common.errors import UserError
from common.places import modules
from config.defaults import TrainConfig
from data.batches import BatchSource, Labeller, TextSource, TrueLabels, Windows
from data.open import kept_path, prepared, tokenizer_file
from data.tokens import open_tokens, read_made
from evaluate.metrics import perplexity
from evaluate.scoring import Score, ScoringPlan, in_sequences, left_to_right, score
from heads import SampledSoftmax, Weights
from model import LanguageModel, Trunk
from training.checkpoint import Saveable
from training.distributed import Processes, derived_seed

T = TypeVar("T")


# -----------------------------------------------------------------------------
# How a training evaluates


class Interrupted(Exception):
    """A signal came during an evaluation."""


class Evaluator:
    """Evaluations of `model`, each shared by the processes."""

    def __init__(self, model: LanguageModel, config: TrainConfig, procs: Processes):
        self.model, self.config, self.procs = model, config, procs
        self.out = Path(config.out_dir)

    @property
    def share(self) -> slice:
        """This process's part of an evaluation's windows."""
        return slice(self.procs.rank, None, self.procs.world)

    def shared(self, work: Callable[[list[Weights]], T]) -> T:
        """`work(draws)`, this process's share of an evaluation, with the model in eval mode.

        The draws of its weights have a generator of their own: evaluation never disturbs training.
        Interrupted, in all processes, if a signal came in one.
        """
        self.model.eval()
        done = None
        try:
            draws = self.model.head.draws(self.config.eval_samples, derived_seed(self.config.seed, 3))
            with contextlib.suppress(Interrupted):
                done = work(draws)
        finally:
            self.model.train()
        if any(self.procs.sums([done is None])):
            raise Interrupted
        assert done is not None
        return done

    def until_stopped(self, batches: Iterable) -> Iterator:
        """An evaluation's batches; Interrupted at a signal, for it can take minutes."""
        for batch in batches:
            if self.procs.signal:
                raise Interrupted
            yield batch


class Evaluation(NamedTuple):
    """What an evaluation finds. The best checkpoint has the least `criterion`, compared score by score.
    A score that is nan ends the training."""

    criterion: dict[str, float]  # scores by name, "nll" among them, on the windows of every evaluation
    values: dict[str, float]  # the same scores on all that this evaluation scored
    logged: dict[str, Any]  # in log.jsonl; on the terminal those whose names begin with "val_"


# -----------------------------------------------------------------------------
# What a training is of


class TrainingTask(Protocol):
    """What a run is trained on and how it is judged. Losses, steps, checkpoints and signals are train.py's.

    info       the data's keys of RunConfig: vocab_size, tokenizer_fingerprint, data_sha256 and others
    tokenizer  goes with every checkpoint; None where there is none
    size       tokens of the train split that have a loss: a pass over them counts the KL of Bayesian weights
               once
    """

    info: dict[str, Any]
    tokenizer: Saveable | None
    size: int

    def __init__(self, config: TrainConfig, procs: Processes):
        """Opens the data. UserError or OSError if that cannot be."""

    @staticmethod
    def settle(config: TrainConfig) -> TrainConfig:
        """`config` with the values that this task decides, see `with_task_defaults`."""
        return config

    def source(self, model: LanguageModel, procs: Processes) -> BatchSource:
        """The training batches. Afterwards `info` is complete."""
        ...

    def evaluate(self, evaluator: Evaluator, last: bool) -> Evaluation:
        """Evaluates the validation split. Interrupted at a signal. `last`: this is the one at max_steps."""
        ...

    def test(self, evaluator: Evaluator, criterion: dict[str, float]) -> None:
        """Called at the end in the first process: scores the best checkpoint, whose `criterion` that was, on
        the test split, if the task has one."""
        ...


def lab_of(dataset: str, trunk: str = "gpt") -> type[TrainingTask] | None:
    """The task of the lab (labs/NAME/task.py) whose DATASETS have `dataset`, or whose TRUNKS have `trunk`.
    None if no lab has: then the run is a TextTask."""
    for task in modules("task").values():
        lab = importlib.import_module(task.removesuffix(".task"))
        if dataset in getattr(lab, "DATASETS", ()) or trunk in getattr(lab, "TRUNKS", ()):
            return importlib.import_module(task).TASK
    return None


def with_task_defaults(config: TrainConfig) -> TrainConfig:
    """The configuration with what its start and its data decide. UserError for a setting that has no meaning
    for them."""
    if config.finetune:
        from training.start import sized_as_start

        config = sized_as_start(config)
    lab = lab_of(config.dataset, config.trunk)
    return lab.settle(config) if lab else config


# -----------------------------------------------------------------------------
# Text


class TokenizerFile:
    """A prepared folder's tokenizer.json, which goes into each checkpoint as it is: training runs none."""

    def __init__(self, path: Path):
        self.content = path.read_bytes()

    def save(self, folder: Path) -> None:
        (folder / "tokenizer.json").write_bytes(self.content)


class TextTask(TrainingTask):
    """A corpus of tokens, judged by the NLL of its validation split. A lab's task for trunks that do not read
    from left to right is a subclass with a source and a scoring plan of its own."""

    def __init__(self, config: TrainConfig, procs: Processes):
        c = self.config = config
        folder = procs.rank0_first(lambda: Path(c.data or prepared(c.dataset, c.tokenizer, c.source)))
        self.train, self.val = open_tokens(folder / "train.bin"), open_tokens(folder / "validation.bin")
        made = read_made(folder)
        file = tokenizer_file(folder, made)
        self.tokenizer = TokenizerFile(file) if file else None
        self.info: dict[str, Any] = {
            "dataset": made.get("corpus", c.dataset),
            "tokenizer": made["tokenizer"],  # not the path of a file
            "vocab_size": made["vocab_size"],
            "tokenizer_fingerprint": made["fingerprint"],
            "data": kept_path(folder),
            "data_sha256": self.train.info["sha256"],
            "validation_sha256": self.val.info["sha256"],
            "train_tokens": len(self.train.ids),
        }
        windows = self.windows = Windows(self.train, c.block_size)
        Windows(self.val, c.block_size)  # UserError if it has no window
        self.size = len(self.train.ids) - len(windows) * windows.given  # tokens with a loss
        if self.train.info["complete"] is False:
            procs.print0(f"{self.info['dataset']} is not the whole official split")

    def source(self, model: LanguageModel, procs: Processes) -> BatchSource:
        c, head, bias = self.config, model.head.head, model.head.projection.bias
        if isinstance(head, SampledSoftmax):
            head.use_frequencies(self.token_counts())
        if c.unigram_bias:
            if bias is None:
                raise UserError(f"unigram_bias: the head {c.head!r} has no bias")
            counts = self.token_counts()
            bias.data.copy_((counts.double() / counts.sum()).log())
        if c.partition_bias and c.init_from and not c.resume:
            from training.start import lower_bias

            lower_bias(model, self.windows.get(np.arange(min(4, len(self.windows))))[0])
        labels: Labeller = TrueLabels(head)
        if c.labels != "true":
            from training.labels import open_labels

            if not head.multi_label:
                raise UserError(f"labels = {c.labels!r}: the head {c.head!r} takes the true token alone")
            labels, of_teacher = open_labels(c, self.train, procs)
            self.info |= of_teacher
        share = (c.micro_batch, procs.rank, procs.world)
        return TextSource(self.windows, labels, c.batch_size, c.seed, *share)

    def token_counts(self) -> torch.Tensor:
        """How often each token is in the train split, plus 1: (V,). numpy takes eight bytes a token of the
        text for it."""
        return torch.from_numpy(np.bincount(self.train.ids, minlength=self.info["vocab_size"]) + 1)

    # -- evaluation --------------------------------------------------------

    def evaluate(self, evaluator: Evaluator, last: bool) -> Evaluation:
        """The NLL of the validation split, of all its windows or of `eval_windows`. A sparse head, which has
        no finite NLL, is judged by PPL_eps."""
        c, trunk = self.config, evaluator.model.trunk
        plan, sparse = self.scoring_plan(trunk), evaluator.model.head.head.sparse
        usual = self.validation_score(evaluator, plan, c.eval_windows)  # of the windows of all evaluations
        # what a run ends with can be compared with any other run
        s = self.validation_score(evaluator, plan) if usual.part and last else usual
        nll, criterion = s.mean, usual.eps_mean if sparse else usual.mean
        if math.isnan(nll):
            return Evaluation({"nll": nll}, {"nll": nll}, {})
        logged: dict[str, Any] = {"val_nll": nll, "val_ppl": perplexity(nll, 1)}
        logged["val_ppl_eps"] = perplexity(s.eps_mean, 1)
        if s.part:
            logged["val_windows"] = s.part
        elif usual.part:
            logged["val_nll_windows"] = criterion
        return Evaluation({"nll": criterion}, {"nll": nll}, logged)

    def scoring_plan(self, trunk: Trunk) -> ScoringPlan:
        """How the validation split is scored: as the trunk is trained."""
        if self.val.given:
            return in_sequences(self.val.ids, self.config.block_size, self.val.given)
        return left_to_right(self.val.ids, trunk.context)

    def validation_score(self, evaluator: Evaluator, plan: ScoringPlan, part: int = 0) -> Score:
        """The score of `part` windows of the validation split (0: all of them), see evaluate.scoring.score.
        Interrupted, in all processes, if a signal came in one."""
        e = evaluator
        how: dict[str, Any] = {"progress": e.until_stopped, "share": e.share, "part": part}
        s = e.shared(lambda draws: score(e.model, plan, 0, draws, e.procs.device, e.config.dtype, **how))
        nll, tokens, zeros, eps_nll = e.procs.sums([s.nll, s.tokens, s.zeros, s.eps_nll])
        return s._replace(nll=nll, tokens=int(tokens), zeros=int(zeros), eps_nll=eps_nll)

    def test(self, evaluator: Evaluator, criterion: dict[str, float]) -> None:
        """Nothing: eval_diversity.py scores the test split."""
