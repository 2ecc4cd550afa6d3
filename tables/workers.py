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

from common.errors import InUse
from common.places import CODE
from tables.jobs import Job
from training.checkpoint import in_use
from training.distributed import LIFELINE, on_stop

STOPS = {signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}


class TrainingsStopped(Exception):
    """A signal, its number in args, ended the trainings."""


def start(command: list[str], environment: dict[str, str]) -> subprocess.Popen:
    return subprocess.Popen(command, env=environment | {LIFELINE: "1"}, stdin=subprocess.PIPE)


def train_all(
    jobs: Sequence[Job], at_a_time: int = 1, ended: Callable[[Job], object] = lambda job: None
) -> None:
    """Trains the jobs that are not over, and calls `ended` with each once it is.

    ChildProcessError naming those that failed, once the others are over; TrainingsStopped at a signal.
    """
    waiting = [job for job in jobs if not job.result()]
    todo, named = len(waiting), set[Path]()
    running: list[tuple[Job, subprocess.Popen]] = []
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
        while running or (waiting and not signals):
            for job in list(waiting):
                if len(running) == at_a_time or signals:
                    break
                try:
                    with in_use(job.out):
                        over, resume = job.result(), ["--resume"] if job.started else []
                except InUse:
                    if job.out not in named:
                        print(f"{job.out.name} is in use by another run: waiting for it", flush=True)
                    named.add(job.out)
                    continue
                waiting.remove(job)
                if over:  # another table has trained it
                    ended(job)
                    continue
                print(f"{job.out.name} ({todo - len(waiting)} of {todo} to do)", flush=True)
                command = [sys.executable, str(CODE / "train.py"), *job.arguments, *resume]
                running.append((job, start([*command, "--log_interval=50"], environment)))
                if signals:  # one that came just before
                    running[-1][1].terminate()
            for job, process in [each for each in running if each[1].poll() is not None]:
                running.remove((job, process))
                code = process.returncode
                by_signal = -code if code < 0 else code - 128
                if code == InUse.code:  # another table was faster
                    waiting.insert(0, job)
                elif by_signal in STOPS:
                    signals.append(by_signal)
                elif job.result():
                    ended(job)
                else:
                    failed.append(job.out.name)
            time.sleep(0.05)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if signals:
        raise TrainingsStopped(signals[0])
    if failed:
        raise ChildProcessError(f"{', '.join(failed)} failed, see the messages above")
