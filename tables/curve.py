"""The curve measure: the evaluations in each run's log."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from common.errors import checking
from common.log import entries
from evaluate.metrics import perplexity
from heads import named_head
from tables.measure import Measure, NamedRun, Session, open_runs
from tables.store import Row
from tables.summary import grouped
from tables.views import View, mean, problems, table


def evaluations(out: Path, part: bool = False, sparse: bool = False) -> list[dict[str, Any]]:
    """The entries that evaluations of the whole validation split wrote: one of a part cannot be compared with
    them. `part`: those of the part (--eval_windows), which all evaluations of a run share, by what judges
    them: the perplexity, and PPL_eps of a `sparse` head."""
    evaluated = [e for e in entries(out) if "val_nll" in e]
    if not part:
        return [e for e in evaluated if "val_windows" not in e]
    plain = [math.log(float(e["val_ppl_eps"])) if sparse else float(e["val_nll"]) for e in evaluated]
    nll = [float(e.get("val_nll_windows", value)) for e, value in zip(evaluated, plain)]  # the last has both
    return [e | {"val_nll": value, "val_ppl": perplexity(value, 1)} for e, value in zip(evaluated, nll)]


@dataclass
class CurveConfig:
    # fmt: off
    checkpoints: list[str]          # [NAME=]RUN ...: out folders of training runs
    part: bool = False              # the evaluations on a part of the split, of runs with --eval_windows
    out: str = ""                   # writes OUT.jsonl and OUT.md
    # fmt: on


class CurveSession(Session):
    def __init__(self, c: CurveConfig):
        self.subjects: Sequence[NamedRun] = open_runs(c.checkpoints, "last")
        self.settings: dict[str, Any] = {"part": c.part}
        self.part = c.part

    def numbers(self, subject: NamedRun) -> Row:
        c = subject.ckpt.record
        with checking():  # of a run of today's heads
            sparse = self.part and named_head(c["head"], c["vocab_size"], c["head_args"]).sparse
        found = evaluations(subject.ckpt.path.parent, self.part, sparse)
        return {"curve": found} if found else {"problem": "no evaluations are in a log.jsonl beside it"}


class CurveMeasure(Measure):
    name, config, session = "curve", CurveConfig, CurveSession

    def check(self, c: CurveConfig, wanted: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {"part": c.part}

    def view(self, rows: list[Row]) -> View:
        """Validation perplexity at each evaluation: mean over the seeds of a training, and that of each."""
        lines = []
        for name, runs in grouped(row for row in rows if "curve" in row).items():
            steps: defaultdict[int, list[float]] = defaultdict(list)
            for entry in chain.from_iterable(run["curve"] for run in runs):
                steps[entry["step"]].append(float(entry["val_ppl"]))
            for step, seeds in sorted(steps.items()):
                each = ", ".join(f"{value:.2f}" for value in seeds)
                lines.append([name, str(step), str(len(seeds)), mean(seeds), each])
        header = ["", "step", "seeds", "validation perplexity", "of each seed"]
        note = "± is half of the 95% interval over the seeds, by Student's t."
        return View([table(header, lines), note, problems(rows)])


MEASURE = CurveMeasure()
