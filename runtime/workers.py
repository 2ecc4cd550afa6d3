"""Trainings as processes: some at a time, shared with other workers, stopped together.

Several workers, on one machine or on several with shared storage, may be given the same runs. A worker holds
a lock beside a run's folder while it trains it; what another one holds is come back to, until it is done.
"""

import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Protocol, TypeVar

import filelock

from runtime import checkpoint
from runtime.errors import UserError
from runtime.files import lock_of, locked
from runtime.places import CODE
from runtime.processes import on_stop

POLL = 1.0  # seconds between looks at runs that other workers train


class Job(Protocol):
    """What a worker knows of a run."""

    @property
    def out(self) -> Path: ...
    @property
    def program(self) -> str: ...  # which trains it, such as train.py
    @property
    def arguments(self) -> tuple[str, ...]: ...  # of the program
    @property
    def started(self) -> bool: ...  # --resume goes on with it
    @property
    def finished(self) -> bool: ...


J = TypeVar("J", bound=Job)


class Stopped(Exception):
    """A signal, its number in args, ended the trainings."""


class Busy(Exception):
    """Another process trains this run."""


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Holds the run of `folder` for this worker; Busy if another one has it, or a training by itself.

    A training's own lock is not enough: two workers that start at once would both start one, and one of the
    two fail.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(lock_of(folder), timeout=0))
            if (folder / ".lock").exists():
                with checkpoint.in_use(folder):
                    pass
        except (filelock.Timeout, UserError):
            raise Busy from None
        yield


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


def is_finished(run: Job) -> bool:
    return run.finished


def ended_well(run: Job, code: int) -> bool:
    return code == 0


def train_all(
    runs: Sequence[J],
    at_a_time: int = 1,
    done: Callable[[J], bool] = is_finished,
    ended: Callable[[J, int], bool] = ended_well,
    go_on: bool = True,
) -> None:
    """Trains the runs that are not done, each by one worker.

    done   whether a run needs no training (any more); asked again when this worker holds the run
    ended  called with a run's exit code while the run is held: whether all is well with it
    go_on  whether the others are trained after one has failed

    ChildProcessError naming those that failed, once the others are over; Stopped at a signal.
    """
    todo = deque(r for r in runs if not done(r))
    count, taken = len(todo), 0
    waited_for: set[Path] = set()
    failed: list[str] = []
    threads = max(1, (os.cpu_count() or 1) // at_a_time)
    environment = os.environ | ({"OMP_NUM_THREADS": str(threads)} if at_a_time > 1 else {})

    def train(run: J) -> None:
        """Trains a run that this worker holds."""
        nonlocal taken
        taken += 1
        if done(run):  # another worker has trained it since
            return
        resume = ["--resume"] if run.started else []
        command = [sys.executable, str(CODE / run.program), *run.arguments, *resume, "--log_interval=50"]
        print(f"{run.out.name} ({taken} of {count} to do)", flush=True)
        code = trainings.run(command, environment)
        by_signal = -code if code < 0 else code - 128
        if by_signal in (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
            trainings.stopped = trainings.stopped or by_signal
        elif not ended(run, code):
            failed.append(run.out.name)

    def work(_: int) -> None:
        """Takes runs until none is left."""
        busy = 0  # runs in a row that others have
        while todo and not trainings.stopped and (go_on or not failed):
            try:
                run = todo.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                with claimed(run.out):
                    busy = 0
                    train(run)
            except Busy:
                todo.append(run)
                busy += 1
                if run.out not in waited_for:
                    print(f"{run.out.name}: another process trains it", flush=True)
                    waited_for.add(run.out)
            if busy >= len(todo) > 0:
                time.sleep(POLL)
                busy = 0

    with stopping(Trainings()) as trainings:
        if at_a_time == 1:
            work(0)
        else:
            with ThreadPoolExecutor(at_a_time) as pool:
                list(pool.map(work, range(at_a_time)))
    if trainings.stopped:
        raise Stopped(trainings.stopped)
    if failed:
        names = ", ".join(failed)
        raise ChildProcessError(f"{names} failed, see the messages above; the other runs are kept")
