"""What a run is trained on, and what judges it: a corpus of tokens (evaluate/text_task.py), or a lab's."""

import importlib
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from common.places import modules

if TYPE_CHECKING:  # what imports torch: a command line is read without it
    from config.defaults import TrainConfig
    from data.batches import BatchSource
    from model import LanguageModel
    from training.checkpoint import Saveable
    from training.distributed import Processes
    from training.evaluator import Evaluator


class Evaluation(NamedTuple):
    """What an evaluation finds. The best checkpoint is the one whose `criterion` is least, by its first score
    first. A score that is nan ends the training."""

    criterion: dict[str, float]  # by which checkpoints are compared; "nll" is one of the names
    values: dict[str, float]  # the same of all that was scored
    sentence: str  # for the terminal
    logged: dict[str, Any]  # in log.jsonl


class TrainingTask(Protocol):
    """What a run is trained on and how it is judged. Losses, steps, checkpoints and signals are train.py's.

    info       what the run's configuration says of the data: vocab_size, tokenizer_fingerprint, data_sha256
    tokenizer  goes with every checkpoint; None where there is none
    size       tokens of the train split that are not given: the KL of Bayesian weights counts once for all
    """

    info: dict[str, Any]
    tokenizer: "Saveable | None"
    size: int

    def __init__(self, config: "TrainConfig", procs: "Processes"):
        """Opens the data. UserError or OSError if that cannot be."""

    def source(self, model: "LanguageModel", procs: "Processes") -> "BatchSource":
        """Its training batches; `info` is complete afterwards."""
        ...

    def evaluate(self, evaluator: "Evaluator", last: bool) -> Evaluation:
        """Evaluates the validation split. Interrupted at a signal. `last`: this is the one at max_steps."""
        ...

    def greeting(self, source: "BatchSource") -> str:
        """What the run is trained on, in words."""
        ...

    def best(self, criterion: dict[str, float], model: "LanguageModel") -> str:
        """What the best checkpoint is judged by, in words."""
        ...

    def test(self, evaluator: "Evaluator", criterion: dict[str, float]) -> None:
        """What is to be done at the end, by the first process, with the best checkpoint."""
        ...


class Lab(TrainingTask, Protocol):
    """A task that decides some of the settings."""

    @staticmethod
    def settle(config: "TrainConfig") -> "TrainConfig":
        """See `settled`."""
        ...


def lab_of(dataset: str) -> type[Lab] | None:
    """The task of the lab whose DATASETS have `dataset` (labs/NAME/task.py). None where that is text, which a
    lab may have prepared, too, or where the lab is not there."""
    for task in modules("task").values():
        if dataset in importlib.import_module(task.removesuffix(".task")).DATASETS:
            return importlib.import_module(task).TASK
    return None


def settled(config: "TrainConfig") -> "TrainConfig":
    """The configuration with what its start and its data decide. UserError for a setting that has no meaning
    for them."""
    if config.finetune:
        from training.resume import sized_as_start  # imports torch: a command line is read without it

        config = sized_as_start(config)
    lab = lab_of(config.dataset)
    return lab.settle(config) if lab else config
