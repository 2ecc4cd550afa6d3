"""Tasks and the threads that do them."""

import threading
import time

import pytest
import torch

from heads.tasks import Task, run


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_each_task_is_done_once_and_after_those_it_waits_for(workers):
    """A lattice of tasks, some of them slow, each of which notes what it found done."""
    done, lock, tasks = set(), threading.Lock(), []

    def work(i: int, after: list[int]) -> None:
        assert done.issuperset(after)
        if i % 7 == 0:
            time.sleep(0.002)
        with lock:
            assert i not in done
            done.add(i)

    for i in range(60):
        after = [j for j in (i - 1, i - 5) if j >= 0 and i % 3]
        tasks.append(Task(lambda i=i, after=after: work(i, after), after))
    run(tasks, workers)
    assert done == set(range(60))


@pytest.mark.parametrize("workers", [1, 3])
def test_the_first_error_is_raised_and_ends_the_rest(workers):
    done = []

    def fail() -> None:
        raise ZeroDivisionError("of a task")

    tasks = [Task(lambda: done.append(0), []), Task(fail, [0])] + [
        Task(lambda i=i: done.append(i), [i - 1]) for i in range(2, 50)
    ]
    with pytest.raises(ZeroDivisionError, match="of a task"):
        run(tasks, workers)
    assert done == [0]
    run([Task(lambda: done.append(1), [])], workers)  # the threads are there for the next
    assert done == [0, 1]


def test_threads_compute_with_one_core_each_and_the_caller_with_as_many_as_before():
    before, seen = torch.get_num_threads(), []
    run([Task(lambda: seen.append(torch.get_num_threads()), []) for _ in range(8)], 3)
    assert seen == [1] * 8 and torch.get_num_threads() == before
    later = []  # a thread that comes afterwards is not cut down to one
    torch.set_num_threads(3)
    try:
        run([Task(lambda: None, [])] * 4, 4)
        thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
        thread.start()
        thread.join()
    finally:
        torch.set_num_threads(before)
    assert later == [3]


def test_nothing_to_do():
    run([], 1)
    run([], 2)
