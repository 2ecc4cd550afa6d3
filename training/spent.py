"""What a run has spent: steps and tokens of its training, and tokens of its teacher.

A run that starts from another one, or learns from its labels, has also spent what that one had.
"""

from typing import Any

from data.labels import LabelSettings
from training.checkpoint import find, is_run, load

Counts = dict[str, Any]  # steps, train_tokens, teacher_tokens; without those that are not known
NOTHING: Counts = {"steps": 0, "train_tokens": 0, "teacher_tokens": 0}


def spent(config: dict[str, Any], progress: dict[str, Any]) -> Counts:
    """What a run has spent at a checkpoint, by its own records: the columns of these names."""
    before = _of_other(config, "init_weights", "init_spent")
    teacher = _of_other(config, "teacher_weights", "teacher_spent")
    counts = {
        "steps": _sum(progress["step"], before.get("steps")),
        "train_tokens": _sum(progress.get("tokens"), before.get("train_tokens")),
        "teacher_tokens": _sum(
            *(_label_tokens(config, progress), before.get("teacher_tokens")),
            *(teacher.get("train_tokens"), teacher.get("teacher_tokens")),
        ),
    }
    return {k: v for k, v in counts.items() if v is not None}


def spent_by(name: str) -> Counts | None:
    """What the run in the folder `name` spent, for a run that builds on it; None if it is none of ours."""
    if not name or not is_run(name):
        return None
    ckpt = load(find(name), weights=False)
    return spent(ckpt.config, ckpt.progress)


def _sum(*parts: Any) -> int | None:
    """None where a part is not known."""
    return sum(parts) if all(type(p) is int for p in parts) else None


def _of_other(config: dict[str, Any], weights: str, record: str) -> Counts:
    """What the run had spent that `config` names; NOTHING of what is not ours; {} if it is not known."""
    counts = config.get(record) if config.get(weights) else NOTHING
    return counts if isinstance(counts, dict) else {}


def _label_tokens(config: dict[str, Any], progress: dict[str, Any]) -> int | None:
    """Tokens that the teacher read for the labels: all windows once for a store, else those of each step."""
    if config.get("labels", "true") == "true":
        return 0
    try:
        block = config["block_size"]
        keys = ("candidates", "positions", "ppl_threshold", "ppl_form")
        settings = LabelSettings(**{key: config[key] for key in keys})
        stored, seen = (config["train_tokens"] - 1) // block, progress["step"] * config["batch_size"]
        windows = stored if config["label_store"] else seen
        return int(windows * settings.reads(block, config["vocab_size"]))
    except (KeyError, TypeError, ValueError):  # another program's checkpoint
        return None
