"""How a training evaluates its model: without disturbing the training, on all processes, until a signal."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from config.defaults import TrainConfig
from heads import Weights
from model import LanguageModel
from training.distributed import Processes

T = TypeVar("T")


def derived_seed(*parts: int) -> int:
    """One 62-bit seed from several numbers: randomness is a function of (seed, step, rank), so no generator
    state is saved."""
    out = 0
    for p in parts:
        out = (out * 0x5851F42D4C957F2D + p + 0x14057B7EF767814F) & (2**62 - 1)
    return out


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
