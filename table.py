"""A whole table: rows x seeds, trained, measured, and summarised with intervals. What is done is kept.

    python table.py config/tables/heads.py                              trains, measures, summarises
    python table.py config/tables/heads.py --search [--key=value ...]   searches each row's own best settings
    python table.py --measure=orders out/sigma_gpt-orders [--key=value ...]      measures runs that are there

Trains each row with each seed (train.py; a stopped one resumes) and measures all runs as they are at the end
of training: no row has several chances to be best by validation. results/NAME.jsonl has a line for each run
and measure; results/NAME.md and the figures are views of it: per row the mean over seeds, with a 95%
interval. What training decides has Student's t over the seeds; see tables/summary.py.

--search trains each row at the points of a search (`space`: learning rate and gain) at one seed, and keeps
the trials in the same file; tables/search.py says how it chooses them. --tuned then trains fresh seeds at
each row's best point. --measure is text (the default), orders, decoding, curve, or a lab's, and --evaluate
has its flags.

Hours of work: stop it with Ctrl-C or SIGTERM, its trainings save; the same command goes on. On several
machines: --commands, see docs/several_machines.md.
"""

import argparse
import shlex
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from common.config import cli, read
from common.errors import UserError
from common.files import beside
from tables import figures, ratios, search
from tables.find import find_measure
from tables.jobs import (
    ByName,
    Job,
    name_of,
    note_changed_heads,
    prepare_data,
    show_commands,
    sources_first,
    used_by,
)
from tables.measure import (
    Measure,
    common_fields,
    evaluate,
    exit_code,
    in_order,
    kept_rows,
    measure_runs,
    show,
)
from tables.names import check_apart
from tables.search import Search, trials_in
from tables.settings import TableConfig
from tables.store import Row, Store
from tables.workers import TrainingsStopped, train_all
from training import checkpoint

# -----------------------------------------------------------------------------
# What is to do


def jobs_of(c: TableConfig, store: Store) -> list[Job]:
    """Each row with each seed. UserError for a row that cannot be, or is there twice."""
    trials = Search(c, search.trials_store(c, store) if c.tuned else store)
    if c.tuned and not c.tuning and trials.store is not store:
        print(f"at the best points of {trials.store.path}", file=sys.stderr)
    points = trials.best_points() if c.tuned else {name: [] for name in trials.names}
    jobs = []
    for seed in c.seeds:
        first = None
        for name, row in zip(trials.names, c.rows):
            job = Job.make(row, seed, c, first, points[name])
            first = first or job
            jobs.append(job)
    check_apart(job.out.name for job in jobs)
    return jobs


def has_row(job: Job, rows: ByName) -> bool:
    """Whether a job without a folder has its row, of the whole training."""
    row = rows.get(job.out.name, {})
    if job.started or "training" not in row or "problem" in row:
        return False
    return row.get("step") == job.wanted["max_steps"] and not job.differs(row["training"], rows)


def to_train(jobs: list[Job], rows: ByName) -> list[Job]:
    """The jobs that are not over and have no row; and those without a folder that they start from."""
    gone = [job for job in jobs if not job.result()]
    todo = [job for job in gone if not has_row(job, rows)]
    while needed := [j for j in gone if j not in todo and any(j.out in used_by(other) for other in todo)]:
        todo += needed
    return [job for job in gone if job in todo]


# -----------------------------------------------------------------------------
# The table


def table(c: TableConfig, store: Store) -> int:
    """Trains what is not there, measures it, and writes the views; the exit code. TrainingsStopped at a
    signal."""
    # All that can be wrong is found before any training
    measure, jobs = find_measure(c.measure), jobs_of(c, store)
    prepare_data([job for job in jobs if job.wanted["source"]])  # the digest tells which rows are kept
    config = config_of_measure(measure, c, [str(job.out) for job in jobs])
    settings = measure.check(config, [job.wanted for job in jobs])
    kept = kept_rows(store, measure, settings)
    pace = ratios.pace_of(Path(c.cost), name_of(c.rows[0])) if c.cost else {}
    if c.commands:
        show_commands(to_train(jobs, kept))
        return 0

    # Training; a source that was trained anew may decide that a row does not count any more
    prepare_data(to_train(jobs, kept))
    while todo := to_train(jobs, kept):
        sources, others = sources_first(todo)
        train_all(sources or others, c.jobs)
    results = {job.out.name: result for job in jobs if (result := job.result())}
    without = [job.out.name for job in jobs if job.out.name not in results and has_row(job, kept)]
    if without:
        print(f"{len(without)} of {len(jobs)} rows are kept from {store.path}, without a folder", flush=True)

    # Measuring
    trained = [job for job in jobs if "nll" in results.get(job.out.name, {})]
    diverged = [
        {"name": job.out.name, **job.fields, **results[job.out.name]}
        for job in jobs
        if "problem" in results.get(job.out.name, {})
    ]
    new: list[Row] = []
    if trained:
        at = [f"{job.out.name}={checkpoint.find_checkpoint(job.out, 'last')}" for job in trained]
        # as checked for all rows: one that is not finished may read less than the others
        agreed = {"block_size": settings["block_size"]} if hasattr(config, "block_size") else {}
        session = measure.session(replace(config, checkpoints=at, **agreed))
        new = measure_runs(measure, session, store, {job.out.name: job.fields for job in jobs})
        settings = session.settings
    elif not without:
        names = ", ".join(row["name"] for row in diverged)
        raise UserError("no run of this table is finished" + (f"; diverged: {names}" if names else ""))

    if not trained and kept:
        settings = next(iter(kept.values()))["settings"]
    still_alike = partial(kept_rows, store, measure, settings)
    store.put([{**common_fields(measure, settings), **row} for row in diverged], still_alike)
    code = exit_code([*new, *diverged])
    shown = in_order(store, measure, [job.out.name for job in jobs])
    show_table(c, store, measure, shown, pace)
    return code


def show_table(
    c: TableConfig, store: Store, measure: Measure, rows: list[Row], pace: dict[str, float]
) -> None:
    """Prints and writes the views of the table's `rows`, also of those that were not asked for now; of a
    tuned one also the ratios to its first row."""
    out = Path(c.results) / c.name
    note_changed_heads(rows)
    show(measure, store, rows, out, c)
    names = {name_of(row) for row in c.rows} | {row.get("row") for row in rows}
    known = trials_in(search.trials_store(c, store)) if c.tuned else []
    trials = [t for t in known if t["row"] in names and t["trial"] < c.trials]
    if trials and (found := ratios.compare(rows, trials)).best:
        drawn = figures.write(ratios.forest(found), beside(out, ".ratios"), c.figures)
        view = ratios.view(found, ratios.costs(rows, found.first, pace))
        print("", view.markdown, *drawn, sep="\n")
        view.write(beside(out, ".ratios"))


def config_of_measure(measure: Measure, c: TableConfig, runs: list[str]) -> Any:
    """The measure's own configuration. UserError for a flag in `evaluate` that it does not take."""
    return read(measure.config, [*runs, *shlex.split(c.evaluate), f"--out={Path(c.results) / c.name}"])


def searched(c: TableConfig, store: Store) -> int:
    """The search of --search; the exit code. TrainingsStopped at a signal."""
    config_of_measure(find_measure(c.measure), c, ["run"])  # UserError for what the table could not take
    trials = Search(c, store)
    trials.check()
    if c.commands:
        show_commands(trials.to_do())
        return 0
    try:
        trials.run()
    finally:
        if trials.kept:
            view = search.view(trials_in(store))
            view.write(beside(Path(c.results) / c.name, ".tune"))
            print("", view.markdown, sep="\n")
    return 0


def main(argv: list[str]) -> int:
    flag = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    flag.add_argument("--measure")
    asked, rest = flag.parse_known_args(argv)
    if asked.measure and not any(a.startswith("--rows") or (a.endswith(".py") and a[0] != "-") for a in rest):
        measure = find_measure(asked.measure)  # of runs, with flags of its own
        return evaluate(measure, read(measure.config, rest, __doc__))
    if run := next((a for a in rest if not a.startswith("-") and Path(a).is_dir()), ""):
        raise UserError(f"{run} is a folder: of runs give --measure=NAME, or python eval_diversity.py {run}")
    c = read(TableConfig, argv, __doc__)
    if c.search and "--tuned" in argv:
        raise UserError("tuned: --search makes the trials; the table at their best points is another command")
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
