"""Tasks for threads of one core each: much small work without a team that has to meet after every piece."""

import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch


class Task(NamedTuple):
    work: Callable[[], None]
    after: list[int]  # the tasks, by their places in the list, that have to be done before


@functools.lru_cache(maxsize=4)
def _threads(count: int) -> ThreadPoolExecutor:
    """`count` threads, in each of which torch computes with that one thread."""
    threads, all_there = ThreadPoolExecutor(count, "tasks"), threading.Barrier(count + 1)
    before = torch.get_num_threads()

    def settle() -> None:
        torch.get_num_threads()  # the first call sets this thread's count, so it comes before the next line
        torch.set_num_threads(1)
        all_there.wait()

    for _ in range(count):
        threads.submit(settle)
    all_there.wait()
    torch.set_num_threads(before)  # a thread yet to come takes the last number that any has set
    return threads


def run(tasks: list[Task], workers: int) -> None:
    """Does all `tasks`, taken in their order by `workers` threads; the first error of one is raised once all
    threads have stopped.

    A task may only wait for tasks before it in the list, which are done or in progress by then: so no wait is
    for ever. If the system suspends a thread, only the tasks that need that thread's task wait for it.
    """
    done = [threading.Event() for _ in tasks]
    order, lock = iter(range(len(tasks))), threading.Lock()
    errors: list[BaseException] = []

    def worker() -> None:
        while not errors:
            with lock:
                i = next(order, None)
            if i is None:
                return
            for j in tasks[i].after:
                done[j].wait()
            try:
                if not errors:
                    tasks[i].work()
            except BaseException as e:
                errors.append(e)
            done[i].set()

    if workers == 1:
        worker()
    else:
        futures = [_threads(workers).submit(worker) for _ in range(workers)]
        try:
            for future in futures:
                future.result()
        except BaseException as e:  # Ctrl-C: the threads must not go on writing where nobody waits for them
            errors.append(e)
            for future in futures:
                future.exception()
    if errors:
        raise errors[0]
