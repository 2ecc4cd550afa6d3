"""The labels of a teacher: those of a store, which augment.py makes where there is none."""

import importlib
from typing import Any

from common import manifest
from config.defaults import TrainConfig
from data.labels import LabelStore, fingerprint, identity, store_folder
from data.tokens import TokenFile
from training.distributed import Processes
from training.run import Run, find_run, training_cost


def open_labels(c: TrainConfig, tokens: TokenFile, procs: Processes) -> tuple[LabelStore, dict[str, Any]]:
    """The labels of a training on `tokens`, and what its configuration says of the teacher. A new store can
    take hours."""
    teacher = Run(find_run(c.teacher))
    made_of = identity(tokens, c, fingerprint(teacher.record, teacher.weights()))
    folder = store_folder(tokens, made_of)

    def opened() -> LabelStore:
        if not (folder / manifest.NAME).is_file():
            importlib.import_module("augment").build_store(tokens, c, made_of, procs.device)
        return LabelStore(folder, made_of, tokens.info["vocab_size"], c.labels == "soft", c.keep_true)

    of_teacher = {"teacher_sha256": made_of["teacher"], "teacher_spent": training_cost(teacher)}
    return procs.rank0_first(opened), of_teacher | {"teacher_weights": teacher.weights_sha256}
