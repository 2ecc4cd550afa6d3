"""What a training's loss learns: the true token alone, or the labels of a teacher, too."""

import importlib
from typing import Any

from common import manifest
from common.errors import UserError
from config.defaults import TrainConfig
from data.batches import Labeller
from data.labels import LabelStore, TrueLabels, fingerprint, identity, store_folder
from data.tokens import TokenFile
from model import LanguageModel
from training.distributed import Processes
from training.run import Run, find_run, training_cost


def open_labels(
    c: TrainConfig, tokens: TokenFile, model: LanguageModel, procs: Processes
) -> tuple[Labeller, dict[str, Any]]:
    """The labels of a training on `tokens`, and what its configuration says of the teacher. Where there is no
    store of them, augment.py makes it, which can take hours.

    UserError if the head takes no labels.
    """
    head = model.head.head
    if c.labels == "true":
        return TrueLabels(head), {}
    if not head.multi_label:
        raise UserError(f"labels = {c.labels!r}: the head {c.head!r} takes the true token alone")
    teacher = Run(find_run(c.teacher))
    made_of = identity(tokens, c, fingerprint(teacher.record, teacher.weights()))
    folder = store_folder(tokens, made_of)

    def opened() -> LabelStore:
        if not (folder / manifest.NAME).is_file():
            importlib.import_module("augment").build_store(tokens, c, made_of, procs.device)
        return LabelStore(folder, made_of, tokens.info["vocab_size"], c.labels == "soft", c.keep_true)

    of_teacher = {"teacher_sha256": made_of["teacher"], "teacher_spent": training_cost(teacher)}
    return procs.rank0_first(opened), of_teacher | {"teacher_weights": teacher.weights_sha256}
