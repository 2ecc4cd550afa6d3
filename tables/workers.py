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

from common.errors import InUse
from common.places import CODE
from tables.jobs import OVER, Job, state
from tables.store import Row
from training.checkpoint import in_use
from training.distributed import LIFELINE, on_stop

STOPS = {signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}


class TrainingsStopped(Exception):
    """A signal, its number in args, ended the trainings."""


def start(command: list[str], environment: dict[str, str]) -> subprocess.Popen:
    return subprocess.Popen(command, env=environment | {LIFELINE: "1"}, stdin=subprocess.PIPE)


def train_all(
    jobs: Sequence[Job], at_a_time: int = 1, ended: Callable[[Job, Row], object] = lambda job, row: None
) -> None:
    """Trains the jobs, and calls `ended` with each that is over and what is left of it.

    ChildProcessError naming those that failed, once the others are over; TrainingsStopped at a signal.
    """
    waiting, in_use_by_others = [*jobs], set[str]()
    running: list[tuple[Job, subprocess.Popen]] = []
    failed: list[str] = []
    signals: list[int] = []
    stopping = False
    threads = max(1, (os.cpu_count() or 1) // at_a_time)
    environment = ({"OMP_NUM_THREADS": str(threads)} if at_a_time > 1 else {}) | os.environ
    before = on_stop(lambda number, frame: signals.append(number))
    try:
        while running or (waiting and not signals):
            # Start what there is room for
            for job in [*waiting]:
                if len(running) == at_a_time or signals:
                    break
                try:
                    with in_use(job.out):
                        left, row = state(job)
                except InUse:
                    if job.name not in in_use_by_others:
                        print(f"{job.name} is in use by another run: waiting for it", flush=True)
                    in_use_by_others.add(job.name)
                    continue
                waiting.remove(job)
                if left in OVER:  # another table has trained it
                    ended(job, row)
                    continue
                print(f"{job.name} ({len(jobs) - len(waiting)} of {len(jobs)} to do)", flush=True)
                resume = ["--resume"] if left == "begun" else []
                command = [sys.executable, str(CODE / "train.py"), *job.arguments, *resume]
                running.append((job, start([*command, "--log_interval=50"], environment)))

            # At a signal they save, then end
            if signals and not stopping:
                stopping = True
                for _, process in running:
                    process.terminate()

            # See what has ended
            for job, process in [each for each in running if each[1].poll() is not None]:
                running.remove((job, process))
                code = process.returncode
                by_signal = -code if code < 0 else code - 128
                if code == InUse.code:  # another table was faster
                    waiting.insert(0, job)
                elif by_signal in STOPS:
                    signals.append(by_signal)
                elif (left_row := state(job))[0] in OVER:
                    ended(job, left_row[1])
                else:
                    failed.append(job.name)
            time.sleep(0.05)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if signals:
        raise TrainingsStopped(signals[0])
    if failed:
        raise ChildProcessError(f"{', '.join(failed)} failed, see the messages above")
