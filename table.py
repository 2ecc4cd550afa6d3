"""A whole table: rows x seeds, trained, evaluated, and summarised with intervals. What is done is kept.

    python table.py config/tables/heads.py [--key=value ...]

Trains each row with each seed (train.py; a stopped one resumes), evaluates all runs as they are at the end of
training (eval_diversity.py; no row has several chances to be best by validation), and writes results/NAME.md,
.csv and .json and the figures: per row the mean over seeds, with a 95% interval. What training decides has
Student's t over the seeds; see evaluation/intervals.py.

Hours of work: stop it with Ctrl-C or SIGTERM, its trainings save. The same command goes on. --tuned: each row
at its best point of a search (tune.py). On several machines: --commands, see docs/several_machines.md.
"""

from evaluation.settings import TableConfig
from runtime.door import Program

program = Program(__name__, __doc__, TableConfig, "scipy", "tabulate", "sacrebleu", "matplotlib")

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import eval_diversity
from data.prepared import folder_of
from evaluation import figures
from evaluation.rows import check_text, check_together
from evaluation.runs import Run, data_of, prepare_data, show_commands, split, used_by, words_of
from evaluation.settings import Settings, other_settings
from evaluation.summary import write_summary
from evaluation.tables import Row, beside, samples_file
from evaluation.tuning import Store, best_of, flags_of, own_keys
from model import context
from runtime import checkpoint
from runtime.configurator import cli
from runtime.errors import UserError
from runtime.files import check_writable, foreign, lock_of, locked, read_json
from runtime.workers import Stopped, train_all

OURS = "a table of this program: give another --name or --results, or move it away"
NONE_FINISHED = "partial = True: no run of this table is finished"


def per_run_table(c: TableConfig) -> Path:
    """Name, without ending, of the table of all runs."""
    return Path(c.results) / f"{c.name}.runs"


# -----------------------------------------------------------------------------
# The runs


def tuning_file(c: TableConfig) -> Path:
    """The trials of tune.py."""
    return Path(c.tuning) if c.tuning else Path(c.results) / f"{c.name}.tune.json"


def best_points(c: TableConfig) -> dict[str, list[str]]:
    """The flags of each row's best point. A row whose search is not over is left out: it is named, or it is
    a UserError unless the table is `partial`."""
    store = Store(tuning_file(c))
    found, missing = {}, []
    for row in c.rows:
        name, *flags = words_of(row)
        own = own_keys(flags)
        trials = store.of_row(name, c.trials)
        best = best_of(trials)
        count = c.trials if c.space.keys() - own else 1
        if best is None or len(trials) < count:
            missing.append(f"{name} ({len(trials)} of {count} trials)")
        else:
            found[name] = flags_of({k: v for k, v in best["point"].items() if k not in own}, own)
    if missing:
        said = f"{store.path} has no best point yet of {', '.join(missing)}"
        if not c.partial:
            raise UserError(
                f"{said}: python tune.py with the same arguments makes them; --partial leaves such rows out"
            )
        print(f"{said}: left out", file=sys.stderr)
    return found


def runs_of(c: TableConfig) -> list[Run]:
    """Each row with each seed; of a tuned table those that have a best point."""
    points = best_points(c) if c.tuned else {}
    runs = []
    for seed in c.seeds:
        first = None
        for row in c.rows:
            name = words_of(row)[0]
            run = Run.make(row, seed, c, first, points.get(name, ()))
            first = first or run
            if name in points or not c.tuned:
                runs.append(run)
    return runs


# -----------------------------------------------------------------------------
# What is done already


def evaluated(runs: list[Run], c: TableConfig) -> set[str]:
    """Names of the runs that need no folder any more.

    An earlier table of the same settings has their row, and no run that is still to do starts from them.
    """
    summary, per_run = Path(c.results) / f"{c.name}.json", beside(per_run_table(c), ".json")
    if not (summary.is_file() and per_run.is_file()):
        return set()
    with foreign(summary, OURS):
        if read_json(summary)["settings"]["table"]["evaluate"] != c.evaluate:
            return set()

    def whole(row: Row) -> bool:
        # an older version took the best by validation
        as_ended = Path(row.get("checkpoint", "")).name.startswith("last")
        return "problem" not in row and as_ended and samples_file(per_run_table(c), row["name"]).is_file()

    with foreign(per_run, OURS):
        rows = {r["name"]: r for r in read_json(per_run)["rows"]}
    return without_folder(runs, rows, per_run, whole)


def without_folder(
    runs: list[Run], rows: dict[str, Row], path: Path, whole: Callable[[Row], bool] = lambda row: True
) -> set[str]:
    """Names of the runs that have no folder, and of which the `rows` in `path` say all that there is to say.
    `whole`: that nothing of a row is missing."""
    with foreign(path, OURS):
        done = {r.out.name for r in runs if has_row(r, rows) and whole(rows[r.out.name])}
    while needed := still_needed(runs, done):
        done -= needed
    return done


def has_row(run: Run, rows: dict[str, Row]) -> bool:
    row = rows.get(run.out.name, {})
    if run.started or "training" not in row or run.differs(row["training"], rows):
        return False
    # a row of an unfinished run may have been added by hand
    return row.get("step") == row["training"]["max_steps"] == run.wanted["max_steps"]


def say_kept(done: set[str], runs: list[Run], path: Path) -> None:
    if done:
        print(
            f"{len(done)} of {len(runs)} runs are kept from {path}, their folders are not there; "
            "--results=DIR starts anew",
            flush=True,
        )


def still_needed(runs: list[Run], done: set[str]) -> set[str]:
    """Those of `done` that a run which is still to do starts from: they need their folder after all."""
    todo = [r for r in runs if r.out.name not in done and not r.finished]
    used = {folder for r in todo for folder in used_by(r)}
    return {r.out.name for r in runs if r.out.name in done and r.out in used}


# -----------------------------------------------------------------------------
# The table


def check_rows(c: TableConfig) -> None:
    """UserError for what neither a table nor a search can be asked for."""
    for key, least in (("jobs", 1), ("halves", 2), ("trials", 1), ("design", 1)):
        if getattr(c, key) < least:
            raise UserError(f"{key} = {getattr(c, key)}: must be at least {least}")
    if not c.rows or not c.seeds:
        raise UserError(
            "rows and seeds: a table needs at least one of each; give the file that has them first: "
            "table.py config/tables/heads.py config/tables/grammar.py"
        )


def check(c: TableConfig) -> list[Run]:
    """The table's runs. UserError for what cannot work, of any row."""
    check_rows(c)
    runs = checked_runs(c)
    check_text(runs[0].out, runs[0].wanted["dataset"])
    asked = eval_diversity.program.read([*(str(r.out) for r in runs), *split(c.evaluate)])
    per_run = per_run_table(c)
    for path in (
        beside(per_run, ".json"),
        samples_file(per_run, "human"),
        Path(c.results) / f"{c.name}.json",
    ):
        check_writable(path)
    reads = min(context(run.wanted) for run in runs)  # of any order one token less than a block
    check_kept(c, eval_diversity.settings_of(asked, reads), data_of(runs[0].wanted, asked.data))
    return runs


def checked_runs(c: TableConfig) -> list[Run]:
    """UserError if they cannot be trained, or not stand in one table."""
    if c.tuned and c.tune_seed in c.seeds:
        raise UserError(
            f"seeds = {c.seeds}: the rows were tuned at seed {c.tune_seed}, a tuned table needs others"
        )
    runs = runs_of(c)
    if len({r.out for r in runs}) < len(runs):
        raise UserError("rows or seeds hold one twice: each row and each seed is to be there once")
    if not runs:
        raise UserError(f"{tuning_file(c)}: no row has its trials yet; python tune.py makes them")

    def folder(wanted: dict[str, Any]) -> Path:
        return folder_of(wanted["dataset"], wanted["tokenizer"], wanted["source"])

    check_together([(run.out, run.wanted) for run in runs], folder, masked=c.evaluator == "orders")
    return runs


def check_kept(c: TableConfig, settings: Settings, text: str | None) -> None:
    """UserError if the results hold rows of other settings, or of another training `text` (SHA-256).

    As far as they are known before the data are prepared: found now, not after the trainings.
    """
    path = beside(per_run_table(c), ".json")
    if not path.is_file():
        return
    with foreign(path, OURS):
        had = dict(read_json(path)["settings"])
    odd = other_settings(had, {k: v for k, v in vars(settings).items() if v != ""})
    if text and had.get("train") != text:
        odd.append(f"training text {str(had.get('train'))[:12]}, now {text[:12]}")
    if odd:
        raise UserError(
            f"{path} holds rows of other settings ({'; '.join(odd)}): "
            "they cannot stand in one table; use those settings, or another --results"
        )


# Those whose tables have no summary beside them: they are by seed themselves. Imported where one is asked for
OWN_TABLES = {"orders": "eval_orders", "images": "eval_images"}


def own_table(c: TableConfig, evaluator: ModuleType) -> int:
    """The evaluator's table of the runs of this one; its exit code. Stopped at a signal."""
    check_rows(c)
    runs, out = checked_runs(c), Path(c.results) / c.name
    flags = [*split(c.evaluate), f"--out={out}"]
    asked_of = evaluator.program.read([*(str(r.out) for r in runs), *flags])
    check_writable(beside(out, ".json"))
    # found now, not after the trainings
    kept = evaluator.check_before(asked_of, out, [r.wanted for r in runs])
    done = without_folder(runs, kept, beside(out, ".json"))
    todo = [r for r in runs if r.out.name not in done and not r.finished]
    if c.commands:
        show_commands(*in_order(todo))
        return 0
    say_kept(done, runs, beside(out, ".json"))
    if not c.partial:
        prepare_data(todo)
        for part in in_order(todo):
            train_all(part, c.jobs)
    there = [r for r in runs if r.finished]
    if not there and not done:
        raise UserError(NONE_FINISHED)
    if not there:
        print(beside(out, ".md").read_text(encoding="utf-8"), end="")
        return 0
    asked = [f"{r.out.name}={checkpoint.find(r.out, 'last')}" for r in there]
    out.parent.mkdir(parents=True, exist_ok=True)
    return evaluator.main([*asked, *flags])


def train_missing(runs: list[Run], done: set[str], c: TableConfig) -> list[Run]:
    """Trains what is not done, and returns it. Stopped at a signal."""
    if c.partial:
        finished = [r for r in runs if r.out.name not in done and r.finished]
        if not finished and not done:
            raise UserError(NONE_FINISHED)
        return finished
    sources, _ = in_order(runs)
    prepare_data([r for r in runs if r.out.name not in done and not r.finished])
    train_all([r for r in sources if r.out.name not in done], c.jobs)
    done = done & evaluated(runs, c)  # which, where a source was trained anew, may need to be, too
    todo = [r for r in runs if r.out.name not in done]
    train_all(todo, c.jobs)
    return todo


def in_order(runs: list[Run]) -> tuple[list[Run], list[Run]]:
    """(those that others start from or that teach them, the others)."""
    used = {folder for r in runs for folder in used_by(r)}
    return [r for r in runs if r.out in used], [r for r in runs if r.out not in used]


def evaluate(todo: list[Run], c: TableConfig) -> int:
    """Rows of these runs, by their weights at the end of training; eval_diversity's exit code."""
    asked = [f"{r.out.name}={checkpoint.find(r.out, 'last')}" for r in todo]
    return eval_diversity.main([*asked, *split(c.evaluate), f"--out={per_run_table(c)}"])


def summarise(c: TableConfig, runs: list[Run]) -> None:
    """Writes the summary and its figures, and shows them."""
    out, per_run = Path(c.results) / c.name, per_run_table(c)
    asked: dict[str, dict[int, str]] = {}
    for run in runs:
        asked.setdefault(run.row, {})[run.seed] = run.out.name
    with locked(lock_of(out)):
        print("", write_summary(out, per_run, asked, vars(c), c.halves), sep="\n")
        drawn = [str(figure) for figure in figures.draw(out)]
    print("", *drawn or [f"no figures: {per_run}.json has no learning curves"], sep="\n")


@program
def main(c: TableConfig) -> int:
    try:
        own = OWN_TABLES.get(c.evaluator)
        return own_table(c, import_module(own)) if own else table_of_heads(c)
    except Stopped as e:
        print("stopped; what is trained is saved: run it again to go on", file=sys.stderr)
        return 128 + e.args[0]


def table_of_heads(c: TableConfig) -> int:
    """The table of eval_diversity.py, with its summary; its exit code. Stopped at a signal."""
    runs, per_run = check(c), per_run_table(c)
    done = evaluated(runs, c)
    if c.commands:
        todo = [r for r in runs if r.out.name not in done and not r.finished]
        show_commands(*in_order(todo))
        return 0
    say_kept(done, runs, beside(per_run, ".json"))
    todo = train_missing(runs, done, c)
    per_run.parent.mkdir(parents=True, exist_ok=True)
    code = evaluate(todo, c) if todo else 0
    if code in (0, 1):  # 1: some models could not be evaluated, see their rows
        summarise(c, runs)
    return code


if __name__ == "__main__":
    cli(main)()
