"""A whole table: rows x seeds, trained, measured, and summarised with intervals. What is done is kept.

    python table.py config/tables/heads.py                              trains, measures, summarises
    python table.py config/tables/heads.py --search [--key=value ...]   searches each row's own best settings
    python table.py --measure=orders out/sigma_gpt-orders [--key=value ...]      measures runs that are there

Trains each row with each seed (train.py; a stopped one resumes) and measures all runs as they are at the end
of training: no row has several chances to be best by validation. results/NAME.jsonl has a line for each run
and measure; results/NAME.md and the figures are views of it: per row the mean over seeds, with a 95%
interval. What training decides has Student's t over the seeds; see evaluate/summary.py.

--search trains each row at the points of a search (`space`: learning rate and gain) at one seed, and keeps
the trials in the same file; evaluate/search.py says how it chooses them. --tuned then trains fresh seeds at
each row's best point. --measure is text (the default), orders, decoding, curve, or a lab's, and --evaluate
has its flags.

Hours of work: stop it with Ctrl-C or SIGTERM, its trainings save; the same command goes on. On several
machines: --commands, see docs/several_machines.md.
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from common.config import cli, read
from common.errors import UserError, reading
from common.files import beside
from evaluate import search
from evaluate.find import find_measure
from evaluate.jobs import (
    Run,
    note_changed_heads,
    prepare_data,
    show_commands,
    split,
    used_by,
    uses_first,
    words_of,
)
from evaluate.measure import (
    Measure,
    check_shown,
    common_fields,
    evaluate,
    exit_code,
    kept_rows,
    measure_runs,
    show,
    table_rows,
    training_of,
)
from evaluate.search import (
    Search,
    best_of,
    check_settings,
    fixed_keys,
    flags_of,
    space_of,
    trials_in,
    trials_of,
)
from evaluate.settings import TableConfig, TextsConfig, measure_of, read_settings
from evaluate.store import Row, Store
from evaluate.text import ratios_view
from evaluate.workers import TrainingsStopped, train_all
from training import checkpoint

NONE_FINISHED = "no run of this table is finished"


# -----------------------------------------------------------------------------
# The runs


def best_points(c: TableConfig, store: Store) -> dict[str, list[str]]:
    """The flags of each row's best point. A row whose search is not over is left out: it is named, or it is
    a UserError unless the table is `partial`. UserError for a seed of the trials, too."""
    path = Path(c.tuning) if c.tuning else store.path
    names = [words_of(row)[0] for row in c.rows]
    trials = trials_in(Store(path))
    tuned_at = {t["settings"].get("tune_seed") for t in trials} or {c.tune_seed}
    if twice := tuned_at & {*c.seeds}:
        raise UserError(
            f"seeds = {c.seeds}: the rows were tuned at seed {min(twice)}, a tuned table needs others; "
            "--tuned=False makes the untuned table"
        )
    if not c.tuning:
        remedy = f"use those settings, another --name, or --tuning={path} to take their points as they are"
        check_settings(c, (trial for trial in trials if trial["row"] in names), path, remedy)
        check_trained_as_asked(c, store, trials)
    points, missing = {}, []
    for name, row in zip(names, c.rows):
        fixed, row_trials = fixed_keys(row, c), trials_of(trials, name, c.trials)
        best, count = best_of(row_trials), c.trials if space_of(row, c) else 1
        if best is None or len(row_trials) < count:
            missing.append(f"{name} ({len(row_trials)} of {count} trials)")
        else:
            points[name] = flags_of({k: v for k, v in best["point"].items() if k not in fixed}, fixed)
    if missing:
        why = f"{path} has no best point yet of {', '.join(missing)}"
        if not c.partial:
            raise UserError(
                f"{why}: the same command with --search makes them; --partial leaves such rows out"
            )
        print(f"{why}: left out", file=sys.stderr)
    return points


def check_trained_as_asked(c: TableConfig, store: Store, trials: list[Row]) -> None:
    """UserError if the best trial of a row is of another configuration or text than the row has by now."""
    asked, of_name = Search(c, store), {t["name"]: t for t in trials}
    for row in c.rows:
        best = best_of(trials_of(trials, words_of(row)[0], c.trials))
        if best is None or not space_of(row, c):
            continue
        first = asked.best_of_first() if uses_first(row) else None
        trial = asked.trial(row, first, best["trial"], best["point"])
        if difference := trial.differs(best["training"], of_name):
            raise UserError(
                f"{store.path}: the best trial {best['name']} was trained with another {difference}: search "
                f"again with another --name, or --tuning={store.path} takes its point as it is"
            )


def runs_of(c: TableConfig, store: Store) -> list[Run]:
    """Each row with each seed; of a tuned table those that have a best point. UserError if they cannot be
    trained."""
    points = best_points(c, store) if c.tuned else {}
    runs = []
    for seed in c.seeds:
        first = None
        for row in c.rows:
            name = words_of(row)[0]
            run = Run.make(row, seed, c, first, points.get(name, ()))
            first = first or run
            if name in points or not c.tuned:
                runs.append(run)
    if len({r.out for r in runs}) < len(runs):
        raise UserError("rows or seeds name a run twice: give each row and each seed once")
    if not runs:
        raise UserError(f"{store.path}: no row has its trials yet; the same command with --search makes them")
    return runs


def sources_first(runs: list[Run]) -> tuple[list[Run], list[Run]]:
    """(those that others start from or that teach them, the others)."""
    used = {folder for r in runs for folder in used_by(r)}
    return [r for r in runs if r.out in used], [r for r in runs if r.out not in used]


# -----------------------------------------------------------------------------
# What is done already


def without_folder(runs: list[Run], rows: dict[str, Row], store: Store, partial: bool) -> set[str]:
    """Names of the runs that need no folder any more: the `rows` say all that there is to say of them, and no
    run that is still to do starts from them; of a `partial` table none is."""
    with reading(store.path or Path()):
        done = {r.out.name for r in runs if has_row(r, rows)}
    while not partial and (needed := still_needed(runs, done)):
        done -= needed
    return done


def has_row(run: Run, rows: dict[str, Row]) -> bool:
    """Whether a run without a folder has its row, of the whole training."""
    row = rows.get(run.out.name, {})
    if run.started or "training" not in row or "problem" in row or run.differs(row["training"], rows):
        return False
    return row.get("step") == row["training"]["max_steps"] == run.wanted["max_steps"]


def still_needed(runs: list[Run], done: set[str]) -> set[str]:
    """Those of `done` that a run which is still to do starts from: they need their folder after all."""
    todo = [r for r in runs if r.out.name not in done and not r.finished]
    used = {folder for r in todo for folder in used_by(r)}
    return {r.out.name for r in runs if r.out.name in done and r.out in used}


# -----------------------------------------------------------------------------
# The table


def table(c: TableConfig, store: Store) -> int:
    """Trains what is not there, measures it, and writes the views; the exit code. TrainingsStopped at a
    signal."""
    measure, runs = find_measure(c.measure), runs_of(c, store)
    # first, for the digest of its text tells whether what is kept is of this source
    prepare_data([r for r in runs if r.wanted["source"]])
    config = config_of_measure(measure, c, [str(r.out) for r in runs])
    settings = measure.check(config, [r.wanted for r in runs])  # UserError now, not after the trainings
    rows = kept_rows(store, measure, settings)
    check_shown(measure, store)
    done = without_folder(runs, rows, store, c.partial)
    if c.commands:
        show_commands(*sources_first([r for r in runs if r.out.name not in done and not r.ended()]))
        return 0
    if done:
        print(
            f"{len(done)} of {len(runs)} runs are kept from {store.path}, their folders are not there; "
            "--results=DIR starts anew",
            flush=True,
        )
    if not c.partial:
        done = trained(runs, done, rows, c, store)
    finished = [r for r in runs if r.out.name not in done and r.finished]
    diverged = [r for r in runs if r.out.name not in done and r.diverged]
    if not finished and not done:
        names = ", ".join(r.out.name for r in diverged)
        raise UserError(NONE_FINISHED + f"; diverged: {names}" * bool(diverged))
    new: list[Row] = []
    if finished:
        at = [f"{r.out.name}={checkpoint.find(r.out, measure.which)}" for r in finished]
        # as checked for all rows: one that is not finished may read less than the others
        agreed = {"block_size": settings["block_size"]} if isinstance(config, TextsConfig) else {}
        session = measure.open(replace(config, checkpoints=at, **agreed))
        new = measure_runs(measure, session, store, {r.out.name: r.fields for r in runs})
        store.put([diverged_row(measure, session.settings, run) for run in diverged])
    rows = {row["name"]: row for row in table_rows(store, measure)}
    over = {r.out.name for r in (*finished, *diverged)} | done
    shown = [r.out.name for r in runs if r.out.name in over & rows.keys()]
    problems = [{"name": r.out.name, "problem": f"its training diverged: {r.diverged}"} for r in diverged]
    code = exit_code([*new, *problems])
    ordered = [rows[name] for name in shown] + [row for row in rows.values() if row.get("reference")]
    store.put(ordered)  # first in the file, in the order of the table
    note_changed_heads(ordered)
    show(measure, store, ordered, Path(c.results) / c.name)
    trials = trials_in(Store(Path(c.tuning)) if c.tuning else store) if c.tuned else []
    if trials and (view := ratios_view(ordered, trials)).parts:
        print("", view.markdown, sep="\n")
        view.write(beside(Path(c.results) / c.name, ".ratios"))
    return code


def diverged_row(measure: Measure, settings: dict[str, Any], run: Run) -> Row:
    """The row of a run whose training diverged: it stands in the table with its reason."""
    ended = run.ended()
    assert ended
    problem = {"problem": f"its training diverged: {ended.why}", "training": training_of(ended.config)}
    return {**common_fields(measure, settings), "name": run.out.name, **run.fields, **problem}


def trained(runs: list[Run], done: set[str], rows: dict[str, Row], c: TableConfig, store: Store) -> set[str]:
    """Trains what is neither done nor finished; names of the runs that still need no folder.
    TrainingsStopped at a signal."""
    prepare_data([r for r in runs if r.out.name not in done and not r.finished])
    for part in sources_first(runs):
        todo = [r for r in part if r.out.name not in done and not r.diverged]
        train_all(todo, c.jobs, lambda run, code: code == 0 or bool(run.diverged))
        # a source may have been trained anew: a row that was made with its old weights does not count
        done = without_folder(runs, rows, store, c.partial)
    return done


def config_of_measure(measure: Measure, c: TableConfig, runs: list[str]) -> Any:
    """The measure's own configuration. UserError for a flag in `evaluate` that it does not take."""
    return read_settings(measure.config, [*runs, *split(c.evaluate), f"--out={Path(c.results) / c.name}"])


def searched(c: TableConfig, store: Store) -> int:
    """The search of --search; the exit code. TrainingsStopped at a signal."""
    trials = Search(c, store)
    if c.commands:
        trials.commands()
        return 0
    try:
        if c.partial:
            trials.collect()
        else:
            trials.run()
    finally:
        if trials_in(store):
            print("", search.write_views(store, Path(c.results) / f"{c.name}.tune"), sep="\n")
    return 0


def main(argv: list[str]) -> int:
    measure, rest = measure_of(argv)
    if measure:
        return evaluate(measure, read_settings(measure.config, rest, __doc__))
    c = read(TableConfig, argv, __doc__)
    if not c.rows:
        raise UserError("rows: give the file that has them, such as config/tables/heads.py")
    store = Store.beside(Path(c.results) / c.name)
    try:
        return searched(c, store) if c.search else table(c, store)
    except TrainingsStopped as e:
        print("stopped; what is trained is saved: run it again to go on", file=sys.stderr)
        return 128 + e.args[0]


if __name__ == "__main__":
    cli(main)
