"""What a run is, and when two are the same training."""

from collections.abc import Collection, Mapping
from dataclasses import is_dataclass
from typing import Any

# keys that a resumed run may change: none of them changes what a step computes, but for the rounding of
# another device, and of sums over other parts of a batch, which have dropout masks of their own
RESUMABLE = {
    *("resume", "out_dir", "max_steps", "eval_interval", "eval_steps", "log_interval"),
    *("wandb", "wandb_project", "device", "compile", "source", "label_store", "data", "teacher_weights"),
    *("processes", "micro_batch", "row", "overlay"),
}


def difference(a: Any, b: Any, but: Collection[str] = ()) -> str:
    """The first key in which the records `a` and `b` differ, with both values: "seed (1, not 2)"; "" if they
    are the same.

    Each is a dataclass or a dict: a configuration, a row's settings, its identity. A key that only one of
    them has tells nothing: an earlier version did not record it. Fill in the defaults first where that is a
    value (common.config.completed).

    but  keys that may differ, such as RESUMABLE
    """
    left, right = (_record(record) for record in (a, b))
    for key in right:
        if key in left and key not in but and left[key] != right[key]:
            return f"{key} ({left[key]!r}, not {right[key]!r})"
    return ""


def _record(record: Any) -> Mapping[str, Any]:
    return vars(record) if is_dataclass(record) else record
