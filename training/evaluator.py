"""How a training evaluates its model: without disturbing the training, on all processes, until a signal."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from config.defaults import TrainConfig
from heads import Weights
from model import LanguageModel
from runtime.processes import Processes
from training.seeds import derived_seed

T = TypeVar("T")


class Stopped(Exception):
    """A signal came during an evaluation."""


class Evaluator:
    """Evaluations of `model`, each shared by the processes. `stop`: whether a signal came in this one."""

    def __init__(self, model: LanguageModel, config: TrainConfig, procs: Processes, stop: Callable[[], bool]):
        self.model, self.config, self.procs, self.stop = model, config, procs, stop
        self.out = Path(config.out_dir)

    @property
    def share(self) -> slice:
        """This process's part of an evaluation's windows."""
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
            if self.stop():
                raise Stopped
            yield batch
