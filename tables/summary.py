"""The summary of a table: a row for each training, with means over its seeds, 95% intervals, differences to
the first row, paired by seed, and stars.

The values of runs with independent seeds, each of which also samples with a seed of its own, hold both
variances: that between trainings and that between texts. So Student's t over the runs' values is an interval
for text metrics too, however the two variances compare. The texts alone would leave out the first one.
"""

import math
import re
import statistics
from collections.abc import Collection, Iterable, Sequence
from itertools import chain

from common.config import with_defaults
from config.defaults import TrainConfig
from tables.columns import Column
from tables.jobs import run_folder
from tables.statistics import ALPHA, best_group, estimate, paired_p
from tables.store import Row
from training import run

Runs = dict[int, Row]  # the runs of one training by their seeds
Columns = Sequence[Column]
QUALITY = ("ppl_eps", "ppl_train")  # the first that rows have; the paper's protocol has the second alone

# a run that another one learns or starts from -> the digests of its weights, of which one is known
SOURCES = {"teacher": ("teacher_weights", "teacher_sha256"), "init_from": ("init_weights",)}
# what may differ between the seeds of one training; of its sources see `same_source`
OF_SEED = {"seed", "name", "commit", *SOURCES, *chain(*SOURCES.values())} | run.RESUMABLE - {"max_steps"}


# -----------------------------------------------------------------------------
# The runs of one training


def grouped(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The runs of each training, under the name of its row, in the order in which they came.

    Seeds of one training have one configuration. Where one row name stands for several, their overlays tell
    them apart; where these do not, each run stands by itself under its own name. So does one that was stopped
    before its end: it is no seed of a whole training.
    """
    rows = [row for row in rows if not row.get("reference")]
    for label in ("{row}", "{row}-{overlay}"):
        groups: dict[str, list[Row]] = {}
        for row in rows:
            name = "{name} (stopped at step {stopped})" if "stopped" in row else label
            groups.setdefault(name.format_map(row), []).append(row)
        if all(map(one_training, groups.values())):
            return groups
    out: dict[str, list[Row]] = {}
    for name, same in groups.items():
        out |= {name: same} if one_training(same) else {row["name"]: [row] for row in same}
    return out


def one_training(rows: list[Row]) -> bool:
    """Whether these are seeds of one training, each there once. What only some of them record, because a
    later version made them, tells none apart."""
    each = [with_defaults(TrainConfig, row.get("training", {})) | {"seed": row["seed"]} for row in rows]
    same = not any(run.difference(each[0], other, OF_SEED) for other in each)
    same = same and all(same_source(each[0], other, key) for other in each for key in SOURCES)
    return same and len({row["seed"] for row in rows}) == len(rows)


def same_source(a: Row, b: Row, key: str) -> bool:
    """Whether two configurations name one run in `key`: by its weights or, where these are not known, by its
    folder; or each the run of its own seed, such as out/baseline-brief-2/last of seed 2."""
    names = [run_folder(c[key]).name for c in (a, b)]
    own = [re.sub(rf"(?<!\d){c['seed']}(?!\d)", "{seed}", name) for c, name in zip((a, b), names)]
    if own[0] == own[1] != names[0]:
        return True
    known = [(a[digest], b[digest]) for digest in SOURCES[key] if a.get(digest) and b.get(digest)]
    return known[0][0] == known[0][1] if known else names[0] == names[1]


def has_seeds(rows: Iterable[Row]) -> bool:
    """Whether a training has several seeds among the runs that have numbers."""
    return any(len(runs) > 1 for runs in grouped(r for r in rows if "problem" not in r).values())


# -----------------------------------------------------------------------------
# Means and differences


def summarise(rows: list[Row], columns: Columns) -> list[Row]:
    """A row for each training, of its runs that have numbers; the references last, alone if there is no run.

    name, runs, seeds
    <key>, <key>_seeds, <key>_ci   mean, value of each seed, half of the mean's 95% interval; a plain number
                                   (Column.best) has no interval
    <key>_diff, <key>_diff_ci      what its runs have more than the first row's, paired by seed, and half of
                                   the 95% interval: one seed is the same start and the same batches, so a
                                   pair differs by less than two runs do
    <key>_better                   whether that interval lies on the good side alone
    <key>_best                     whether it cannot be told from the best, see `best_rows`
    quality_worse                  whether it predicts text worse than the first row, see `worse`
    """
    runs: dict[str, Runs] = {}
    for name, same in grouped(rows).items():
        if sound := {row["seed"]: row for row in same if "problem" not in row}:
            runs[name] = sound
    references = [row for row in rows if row.get("reference")]
    if not runs:
        return references
    human = next(iter(references), {})  # the first of a measure's: human text, or the truth
    base, noisy, summary = next(iter(runs.values())), worse(runs), []
    best = {column.key: best_rows(column, runs, human, noisy) for column in columns}
    for name, of_seed in runs.items():
        row: Row = {"name": name, "runs": [r["name"] for r in of_seed.values()], "seeds": [*of_seed]}
        row |= {"quality_worse": name in noisy, **{f"{key}_best": name in best[key] for key in best}}
        for column in columns:
            row |= numbers_of(column, of_seed, base, human)
        summary.append(row)
    return summary + references


def numbers_of(column: Column, runs: Runs, base: Runs, human: Row) -> Row:
    """The numbers of a column in `summarise`, of the `runs` of a row and of the first one."""
    key, values = column.key, [r[column.key] for r in runs.values() if column.key in r]
    if not values:
        return {}
    out: Row = {key: statistics.fmean(values), f"{key}_seeds": [r.get(key) for r in runs.values()]}
    if not column.best:
        return out
    out[f"{key}_ci"] = estimate(values).half
    pairs = [(runs[s], base[s]) for s in runs if s in base]
    if pairs and all(key in row for pair in pairs for row in pair):
        more = estimate([a[key] - b[key] for a, b in pairs])
        out |= {f"{key}_diff": more.mean, f"{key}_diff_ci": more.half}
        if column.best != "human" or key in human:
            far = estimate([distance(a, human, column) - distance(b, human, column) for a, b in pairs])
            out[f"{key}_better"] = far.mean + far.half < 0
    return out


# -----------------------------------------------------------------------------
# Stars


def quality_of(rows: Iterable[Row]) -> str:
    """The key of the perplexity that says how well these rows predict text; "" where none has one."""
    keys = {key for row in rows for key in row}
    return next((key for key in QUALITY if key in keys), "")


def worse(rows: dict[str, Runs]) -> set[str]:
    """The rows that predict text worse than the first row, or of which nobody can know it; none where no row
    has a perplexity.

    A paired t-test of its logarithm, one-sided, each row at 5%: without a correction for their number, which
    would let more of the worse rows in.
    """
    key = quality_of(r for runs in rows.values() for r in runs.values())
    if not key:
        return set()
    known = {n: all(0 < r.get(key, 0) < math.inf for r in runs.values()) for n, runs in rows.items()}
    quality = {n: {s: math.log(r[key]) for s, r in runs.items() if known[n]} for n, runs in rows.items()}
    first, *others = quality
    p = {name: paired_p(quality[name], quality[first]) for name in others}
    return {name for name, value in p.items() if not value > ALPHA}


def distance(row: Row, human: Row, column: Column) -> float:
    """How far a run is from the column's best value; a perplexity by its logarithm, the mean NLL."""
    value = row[column.key]
    if column.best == "human":
        return abs(value - human[column.key])
    if column.key.startswith("ppl_") and value > 0:
        return math.log(value)
    return -value if column.best == "high" else value


def best_rows(column: Column, rows: dict[str, Runs], human: Row, noisy: Collection[str]) -> set[str]:
    """The rows that cannot be told from the best of a column.

    Text that is as diverse as human text can be noise: where nearness to human is best, a row competes only
    if it predicts text no worse than the first row.
    """
    near = column.best == "human"
    if not column.best or (near and column.key not in human):
        return set()
    return best_group(
        {
            name: {seed: distance(r, human, column) for seed, r in runs.items() if column.key in r}
            for name, runs in rows.items()
            if not (near and name in noisy)
        }
    )
