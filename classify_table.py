"""A table of classifiers: rows x seeds, trained and tested, with intervals, beside the document's figures.

    python classify_table.py config/tables/mnist.py [--key=value ...]

Trains each row with each seed (classify.py; a stopped one resumes) and writes results/NAME.md, .csv and
.json: per row the mean over seeds, with a 95% interval by Student's t, and a star where it cannot be told
from the best. The test images are scored once a run, by the checkpoint that is best on the validation images.

Heads differ by the gain of their logits before they differ by anything else. With --gains=0.5,1,2,4 each row
gets the one of them with which a training of another seed does best on the validation images; without, the
table says that it is not tuned. What is done is kept: the same command goes on after Ctrl-C.
"""

import shlex
from dataclasses import dataclass, field
from pathlib import Path

from runtime.door import Program
from runtime.errors import UserError
from runtime.names import check_row_name


@dataclass
class ClassTableConfig:
    # fmt: off
    name: str = ""                                  # of the table; empty: the config file's
    rows: list[str] = field(default_factory=list)   # of each its name and its flags of classify.py
    #                                                 the others' differences are to the first
    config: str = "mnist"                           # config file of all rows: config/CONFIG.py
    flags: str = ""                                 # of classify.py, given to each row before its own
    seeds: list[int] = field(default_factory=lambda: [2, 3, 4, 5, 6])
    gains: list[float] = field(default_factory=list)    # each row at the best of these; empty: not tuned
    tune_seed: int = 1                              # of the trainings that find it
    partial: bool = False                           # trains nothing: a table of the runs that are finished
    jobs: int = 1                                   # trainings at a time, each with its share of the cores
    runs: str = "out"                               # folder of the runs
    results: str = "results"                        # folder of the table
    # fmt: on

    def check(self) -> None:
        """UserError for what no table can be asked for."""
        if not self.rows or not self.seeds:
            raise UserError(
                "rows and seeds: a table needs at least one of each; config/tables/mnist.py has them"
            )
        if min(self.gains, default=1.0) <= 0 or len({*self.gains}) < len(self.gains):
            raise UserError(f"gains = {self.gains}: each must be positive, and there once")
        if self.jobs < 1:
            raise UserError(f"jobs = {self.jobs}: must be at least 1")
        if self.gains and self.tune_seed in self.seeds:
            raise UserError(
                f"seeds = {self.seeds}: gains are chosen at seed {self.tune_seed}, the table needs others"
            )
        names = [name_of(row) for row in self.rows]
        if len({*names}) < len(names) or len({*self.seeds}) < len(self.seeds):
            raise UserError("rows or seeds hold one twice: each row and each seed is to be there once")

    @property
    def out(self) -> Path:
        """Name, without ending, of the table."""
        return Path(self.results) / self.name


def name_of(row: str) -> str:
    return check_row_name((words(row) or [""])[0])


def words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(f"{text!r} cannot be split into words: {error}") from None


program = Program(__name__, __doc__, ClassTableConfig, "scipy", "tabulate", "sacrebleu")

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, ClassVar

from classify import RESULT, ClassifyConfig, lasting
from data.images.sets import open_images
from evaluation.classification import COLUMNS, PUBLISHED
from evaluation.groups import group
from evaluation.intervals import Runs, differences, summarise, with_intervals
from evaluation.provenance import versions
from evaluation.summary import sheet
from evaluation.tables import Row, beside, distance, json_table, markdown, number_strings, strict, terminal
from runtime import checkpoint
from runtime.configurator import cli, completed
from runtime.files import check_writable, foreign, lock_of, locked, read_json, replacing
from runtime.workers import Stopped, train_all

OURS = "a table of classify_table.py: give another --name or --results, or move it away"
REMEDY = "move it away, or give another --runs folder"


# -----------------------------------------------------------------------------
# Runs


@dataclass(frozen=True)
class ClassRun:
    """One training, a Job of runtime/workers.py."""

    row: str
    seed: int
    out: Path
    arguments: tuple[str, ...]
    program: ClassVar[str] = "classify.py"

    @classmethod
    def make(cls, row: str, seed: int, c: ClassTableConfig, gain: float | None = None) -> "ClassRun":
        """`gain`: of a tuned table, in place of the row's own."""
        name, *flags = words(row)
        end = "" if gain is None else f"-gain{gain:g}"
        out = Path(c.runs) / check_row_name(f"{name}-{c.config}{end}-{seed}")
        given = (*words(c.flags), *flags, *([f"--gain={gain}"] if end else []))
        itself = (f"--seed={seed}", f"--name={out.name}", f"--out_dir={out}")
        return cls(name, seed, out, (f"config/{c.config}.py", *given, *itself))

    @property
    def wanted(self) -> ClassifyConfig:
        return ClassifyConfig.read(list(self.arguments))

    @property
    def started(self) -> bool:
        return checkpoint.begun(self.out)

    @property
    def finished(self) -> bool:
        return self.result() is not None

    def result(self) -> Row | None:
        """What the run left, if it is over. UserError if it is not the training that is asked for."""
        path, found = self.out / RESULT, None
        if path.is_file():
            with foreign(path, "what classify.py writes: move the run away"):
                found = number_strings(read_json(path))
                config, done = found["training"], float(found["training"]["epochs"])
        elif self.started:
            config = checkpoint.load(checkpoint.find(self.out, "last"), weights=False).config
        else:
            return None
        if odd := self.differs(config):
            raise UserError(f"{self.out} was trained with another {odd}: {REMEDY}")
        if found is None:
            return None
        asked = self.wanted.epochs
        if done > asked:
            raise UserError(f"{self.out} was trained for {done:g} epochs, not {asked:g}: {REMEDY}")
        return found if done == asked else None

    def differs(self, config: dict[str, Any]) -> str:
        """The first setting in which a run's configuration is not what is asked for; or ""."""
        wanted, config = lasting(asdict(self.wanted)), completed(ClassifyConfig, config)
        odd = [k for k, v in wanted.items() if config[k] != v]
        return f"{odd[0]} ({config[odd[0]]!r}, not {wanted[odd[0]]!r})" if odd else ""


def kept_rows(c: ClassTableConfig) -> dict[str, Row]:
    """The runs of an earlier table of this name: they need no folder any more."""
    path = beside(c.out, ".runs.json")
    if not path.is_file():
        return {}
    with foreign(path, OURS):
        rows = [r | {"training": dict(r["training"])} for r in read_json(path)["rows"]]
        return {r["name"]: number_strings(r) for r in rows}


def row_of(run: ClassRun, kept: dict[str, Row]) -> Row | None:
    """What is known of a run; None if it is to be trained."""
    result, had = run.result(), kept.get(run.out.name)
    if result is not None or run.started or had is None:
        return result
    if run.differs(had["training"]) or had["training"]["epochs"] != run.wanted.epochs:
        return None
    return had


def trained(runs: Sequence[ClassRun], c: ClassTableConfig, kept: dict[str, Row]) -> dict[str, Row]:
    """The results of `runs` by name, after training what is missing (of a `partial` table without that).
    Stopped at a signal."""
    if not c.partial:
        todo = [r for r in runs if row_of(r, kept) is None]
        for images in {(w.dataset, w.source, w.validation) for w in (run.wanted for run in todo)}:
            open_images(*images)  # what cannot be had is said once, and not run by run
        train_all(todo, c.jobs, ended=lambda run, code: run.finished)  # one that diverged is over, too
    found = {run.out.name: row_of(run, kept) for run in runs}
    return {name: row for name, row in found.items() if row is not None}


def gains_of(c: ClassTableConfig, kept: dict[str, Row]) -> tuple[dict[str, float | None], dict[str, Row]]:
    """(the gain of each row, or None for its own; the results that it was chosen by). A row whose trials are
    not over, in a `partial` table, is left out."""
    if not c.gains:
        return dict.fromkeys(map(name_of, c.rows)), {}
    trials = {(row, g): ClassRun.make(row, c.tune_seed, c, g) for row in c.rows for g in c.gains}
    found = trained(list(trials.values()), c, kept)
    gains: dict[str, float | None] = {}
    for row in c.rows:
        results = {g: found.get(trials[row, g].out.name) for g in c.gains}
        over = {g: r for g, r in results.items() if r is not None}
        judged = {g: (r["val_accuracy"], -r["val_nll"]) for g, r in over.items() if "problem" not in r}
        if judged and len(over) == len(c.gains):
            gains[name_of(row)] = max(judged, key=judged.__getitem__)
    return gains, found


# -----------------------------------------------------------------------------
# The table


def check_same_images(rows: dict[str, Row]) -> str:
    """The name of the set that all were trained on. UserError if they were not, or if there are none."""
    if not rows:
        raise UserError("partial = True: no run of this table is finished")
    seen = {r["training"]["data_sha256"]: (name, r["training"]["images"]) for name, r in rows.items()}
    if len(seen) > 1:
        both = "; ".join(f"{name} was trained on {images}" for name, images in seen.values())
        raise UserError(f"{both}: other images cannot stand in one table; {REMEDY}")
    return next(iter(seen.values()))[1]


def summary_of(runs: dict[str, Runs]) -> list[Row]:
    """The rows of the table, of the runs of each by seed."""
    base = next(iter(runs.values()))
    summary = [
        {**summarise(row, of_seed, COLUMNS), **differences(of_seed, base, COLUMNS)}
        for row, of_seed in runs.items()
    ]
    for column in (c for c in COLUMNS if c.best):
        far = {
            row: {seed: distance(r, {}, column) for seed, r in of_seed.items()}
            for row, of_seed in runs.items()
        }
        best = group(far)
        for row in summary:
            row[column.key + "_best"] = row["name"] in best
    return summary


UNTUNED = (
    "Gain: NOT tuned, each row's own. Heads differ by the gain of their logits before they differ by "
    "anything else, so differences may be the gain's (--gains=0.5,1,2,4 tunes it)."
)


def note(c: ClassTableConfig, images: str, training: dict[str, Any], bad: list[str]) -> list[str]:
    """The lines under the table; `bad`: runs that diverged."""
    t, tuned = training, UNTUNED
    if c.gains:
        tuned = (
            f"Gain: tuned, for each row that of {', '.join(f'{g:g}' for g in c.gains)} with the best "
            f"validation accuracy (then NLL) of a training with seed {c.tune_seed}."
        )
    return [
        f"{images}: {t['train_images']:,} images to train on, {t['validation']:.0%} of the train split held "
        f"out to choose the checkpoint; config/{c.config}.py: {t['epochs']:g} epochs, batch "
        f"{t['batch_size']}, {t['optimizer']} at {t['learning_rate']:g}, {t['dtype']}, "
        f"network {' '.join(t['layers'].split())}. Some heads have an output bias, others none.",
        tuned,
        f"Mean of the seeds {', '.join(map(str, c.seeds))} ± half of its 95% interval, Student's t. * marks "
        "the rows that cannot be told from the best: paired one-sided t-tests with Holm's correction, alpha "
        ".05; a row of fewer than 3 seeds is never marked. The document's are of one training each.",
        *(f"- {column.title}: {column.what}." for column in COLUMNS),
        *([f"- Diverged, and in no mean: {', '.join(bad)}."] if bad else []),
    ]


def write(c: ClassTableConfig, runs: Sequence[ClassRun], found: dict[str, Row], kept: dict[str, Row]) -> str:
    """Writes the table of `runs`, of which these results were `found`; its text for a terminal.

    NAME.runs.json has all results, with those that it had: `kept`.
    """
    images = check_same_images(found)
    rows: dict[str, Runs] = {}
    bad = [run.out.name for run in runs if "problem" in found.get(run.out.name, {})]
    for run in (r for r in runs if r.out.name in found and r.out.name not in bad):
        result = found[run.out.name]
        more = {"gain": result["training"]["gain"]}
        if run.row in PUBLISHED.get(images, {}):
            more["published"] = PUBLISHED[images][run.row]
        rows.setdefault(run.row, {})[run.seed] = result | more
    if not rows:
        raise UserError("no run of this table is finished" + f"; diverged: {', '.join(bad)}" * bool(bad))
    summary = summary_of({row: rows[row] for row in map(name_of, c.rows) if row in rows})
    training = found[summary[0]["runs"][0]]["training"]
    body, said = with_intervals(summary, COLUMNS), note(c, images, training, bad)
    settings = {"settings": {"table": asdict(c)}, "images": images, "versions": versions()}
    content = {
        ".md": "\n\n".join((markdown(COLUMNS, body), *said[:3], "\n".join(said[3:]))) + "\n",
        ".csv": sheet(summary, COLUMNS),
        ".runs.json": json_table(settings, [strict(r) for r in (kept | found).values()]),
        ".json": json_table(settings, [strict(r) for r in summary]),
    }
    c.out.parent.mkdir(parents=True, exist_ok=True)
    with locked(lock_of(c.out)):
        for end, text in content.items():
            with replacing(beside(c.out, end)) as f:
                f.write(text.encode())
    return "\n".join((terminal(COLUMNS, body), "", *said))


@program
def main(c: ClassTableConfig) -> int:
    check_writable(beside(c.out, ".json"))
    for row in c.rows:  # what cannot be trained is found before anything is
        ClassRun.make(row, c.tune_seed, c).wanted
    kept = kept_rows(c)
    try:
        gains, trials = gains_of(c, kept)
        runs = [
            ClassRun.make(row, seed, c, gains[name_of(row)])
            for seed in c.seeds
            for row in c.rows
            if name_of(row) in gains
        ]
        rows = trained(runs, c, kept)
    except Stopped as e:
        print("stopped; what is trained is saved: run it again to go on", file=sys.stderr)
        return 128 + e.args[0]
    print("", write(c, runs, trials | rows, kept), sep="\n")
    return 0


if __name__ == "__main__":
    cli(main)()
