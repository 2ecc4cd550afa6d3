"""Trainings as processes: some at a time, stopped together.

Each holds a lock on its own folder (training/checkpoint.py): two processes never write one run. A training
ends with its table, however that ends: its stdin is a pipe, of which the table alone holds the other end.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from common.places import CODE
from tables.jobs import OVER, Job, state
from tables.store import Row
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
    waiting, running = [*jobs], list[tuple[Job, subprocess.Popen]]()
    failed: list[str] = []
    signals: list[int] = []
    stopping = False
    threads = max(1, (os.cpu_count() or 1) // at_a_time)
    environment = ({"OMP_NUM_THREADS": str(threads)} if at_a_time > 1 else {}) | os.environ
    before = on_stop(lambda number, frame: signals.append(number))
    try:
        while running or (waiting and not signals):
            # Start what there is room for
            while waiting and len(running) < at_a_time and not signals:
                job = waiting.pop(0)
                print(f"{job.name} ({len(jobs) - len(waiting)} of {len(jobs)} to do)", flush=True)
                resume = ["--resume"] if state(job)[0] == "begun" else []
                command = [sys.executable, str(CODE / "train.py"), "--log_interval=50", *job.arguments]
                running.append((job, start([*command, *resume], environment)))

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
                if by_signal in STOPS:
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
