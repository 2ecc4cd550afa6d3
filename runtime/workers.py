"""Trainings as processes: some at a time, stopped together.

Each holds a lock on its own folder (runtime/checkpoint.py), so that two processes never write one run.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Protocol, TypeVar

from runtime.places import CODE
from runtime.processes import on_stop


class Job(Protocol):
    """What is known of a run that is to be trained."""

    @property
    def out(self) -> Path: ...
    @property
    def arguments(self) -> tuple[str, ...]: ...  # of train.py
    @property
    def started(self) -> bool: ...  # --resume goes on with it
    @property
    def finished(self) -> bool: ...


J = TypeVar("J", bound=Job)


class TrainingsStopped(Exception):
    """A signal, its number in args, ended the trainings."""


class Trainings:
    """The processes that train now, and the signal that stopped them."""

    def __init__(self) -> None:
        self.running: set[subprocess.Popen] = set()
        self.stopped = 0

    def run(self, command: list[str], environment: dict[str, str]) -> int:
        """The exit code of `command`."""
        process = subprocess.Popen(command, env=environment)
        self.running.add(process)
        if self.stopped:  # by a signal that came just before
            process.terminate()
        code = process.wait()
        self.running.discard(process)
        return code

    def stop(self, number: int, frame: FrameType | None) -> None:
        """Answers a signal: every training saves and ends."""
        self.stopped = self.stopped or number
        for process in list(self.running):
            process.terminate()


@contextmanager
def stopping(trainings: Trainings) -> Iterator[Trainings]:
    """Within it a signal to stop goes to the trainings, too: SIGTERM reaches this process alone."""
    before = on_stop(trainings.stop)
    try:
        yield trainings
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ended_well(run: Job, code: int) -> bool:
    return code == 0


def train_all(
    runs: Sequence[J], at_a_time: int = 1, ended: Callable[[J, int], bool] = ended_well, go_on: bool = True
) -> None:
    """Trains the runs that are not finished.

    ended  called with a run's exit code once it is over: whether all is well with it
    go_on  whether the others are trained after one has failed

    ChildProcessError naming those that failed, once the others are over; TrainingsStopped at a signal.
    """
    todo = [r for r in runs if not r.finished]
    failed: list[str] = []
    threads = max(1, (os.cpu_count() or 1) // at_a_time)
    environment = ({"OMP_NUM_THREADS": str(threads)} if at_a_time > 1 else {}) | os.environ

    def train(number: int, run: J) -> None:
        if trainings.stopped or (failed and not go_on):
            return
        resume = ["--resume"] if run.started else []
        command = [sys.executable, str(CODE / "train.py"), *run.arguments, *resume, "--log_interval=50"]
        print(f"{run.out.name} ({number} of {len(todo)} to do)", flush=True)
        code = trainings.run(command, environment)
        by_signal = -code if code < 0 else code - 128
        if by_signal in (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
            trainings.stopped = trainings.stopped or by_signal
        elif not ended(run, code):
            failed.append(run.out.name)

    with stopping(Trainings()) as trainings, ThreadPoolExecutor(at_a_time) as pool:
        each = map if at_a_time == 1 else pool.map  # an error ends `map`, but not the pool's queue
        list(each(train, range(1, len(todo) + 1), todo))
    if trainings.stopped:
        raise TrainingsStopped(trainings.stopped)
    if failed:
        names = ", ".join(failed)
        raise ChildProcessError(
            f"{names} failed, see the messages above; the other runs are kept, and the same command goes on"
        )
