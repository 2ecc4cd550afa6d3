"""What a run has spent: steps and tokens of its training, and tokens of its teacher.

A run that starts from another one, or learns from its labels, has also spent what that one had.
"""

from typing import Any

from training.checkpoint import is_run
from training.run import Run

Counts = dict[str, Any]  # steps, train_tokens, teacher_tokens; without those that are not known
NOTHING: Counts = {"steps": 0, "train_tokens": 0, "teacher_tokens": 0}


def spent(run: Run) -> Counts:
    """What a run has spent at its checkpoint, by its own records: the columns of these names."""
    c, p = run.config, run.progress
    before = (c.init_spent or {}) if c.init_weights else NOTHING
    teacher = (c.teacher_spent or {}) if c.teacher_weights else NOTHING
    # the windows that the teacher read for the labels: all of them once for a store, else those of each step
    windows: int | None = p.step * c.batch_size
    if c.label_store:
        windows = None if c.train_tokens is None else (c.train_tokens - 1) // c.block_size
    labels: int | None = 0
    if c.labels != "true":
        labels = None if windows is None else windows * c.block_size
    teachers = (teacher.get("train_tokens"), teacher.get("teacher_tokens"))
    parts = {
        "steps": (p.step, before.get("steps")),
        "train_tokens": (p.tokens, before.get("train_tokens")),
        "teacher_tokens": (labels, before.get("teacher_tokens"), *teachers),
    }
    return {key: sum(counts) for key, counts in parts.items() if None not in counts}


def spent_by(name: str) -> Counts | None:
    """What the run in the folder `name` spent, for a run that builds on it; None if it is none of ours."""
    return spent(Run(name)) if name and is_run(name) else None
