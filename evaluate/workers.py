"""Trainings as processes: some at a time, stopped together.

Each holds a lock on its own folder (training/checkpoint.py), so that two processes never write one run. A run
that another table trains is waited for. A training ends with its table, however that ends: its stdin is a
pipe, of which the table alone holds the other end.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Protocol, TypeVar

from common.errors import InUse
from common.places import CODE
from training.checkpoint import in_use
from training.distributed import LIFELINE, on_stop

STOPS = {signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}


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


def start(command: list[str], environment: dict[str, str]) -> subprocess.Popen:
    return subprocess.Popen(command, env=environment | {LIFELINE: "1"}, stdin=subprocess.PIPE)


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
    waiting = [r for r in runs if not r.finished]
    todo, named = len(waiting), set[Path]()
    running: list[tuple[J, subprocess.Popen]] = []
    failed: list[str] = []
    signals: list[int] = []
    threads = max(1, (os.cpu_count() or 1) // at_a_time)
    environment = ({"OMP_NUM_THREADS": str(threads)} if at_a_time > 1 else {}) | os.environ

    def stop(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        for _, process in running:
            process.terminate()  # it saves, then ends

    before = on_stop(stop)
    try:
        while running or (waiting and not signals and (go_on or not failed)):
            for run in list(waiting):
                if len(running) == at_a_time or signals or (failed and not go_on):
                    break
                try:
                    with in_use(run.out):
                        over, resume = run.finished, ["--resume"] if run.started else []
                except InUse:
                    if run.out not in named:
                        print(f"{run.out.name} is in use by another run: waiting for it", flush=True)
                    named.add(run.out)
                    continue
                waiting.remove(run)
                if over and ended(run, 0):  # another table has trained it
                    continue
                print(f"{run.out.name} ({todo - len(waiting)} of {todo} to do)", flush=True)
                command = [sys.executable, str(CODE / "train.py"), *run.arguments, *resume]
                running.append((run, start([*command, "--log_interval=50"], environment)))
                if signals:  # one that came just before
                    running[-1][1].terminate()
            for run, process in [each for each in running if each[1].poll() is not None]:
                running.remove((run, process))
                code = process.returncode
                by_signal = -code if code < 0 else code - 128
                if code == InUse.code:  # another table was faster
                    waiting.insert(0, run)
                elif by_signal in STOPS:
                    signals.append(by_signal)
                elif not ended(run, code):
                    failed.append(run.out.name)
            time.sleep(0.05)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if signals:
        raise TrainingsStopped(signals[0])
    if failed:
        names = ", ".join(failed)
        raise ChildProcessError(
            f"{names} failed, see the messages above; the other runs are kept, and the same command goes on"
        )
