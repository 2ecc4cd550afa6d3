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
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from common.config import cli, read, split_flags
from common.errors import UserError
from common.files import beside
from common.places import commit
from tables import figures, ratios
from tables.find import find_measure
from tables.jobs import jobs_of, prepare_data, ready, show_commands, state, to_train, without_source
from tables.measure import (
    check_columns,
    common_fields,
    evaluate,
    exit_code,
    in_order,
    kept_rows,
    measure_runs,
    show,
)
from tables.search import Search, trials_in, trials_store
from tables.search import view as search_view
from tables.settings import TableConfig
from tables.store import Row, Store
from tables.workers import TrainingsStopped, train_all
from training.checkpoint import find_checkpoint


def table(c: TableConfig, store: Store) -> int:
    """Trains what is not there, measures it, and writes the views; the exit code. TrainingsStopped at a
    signal."""
    # What is to do. All that can be wrong is found before any training
    measure, out = find_measure(c.measure), Path(c.results) / c.name
    check_columns(measure, c.columns)
    trials = trials_store(c, store) if c.tuned else store
    jobs = jobs_of(c, Search(c, trials).best_points() if c.tuned else {})
    prepare_data(job for job in jobs if job.wanted["source"])  # whose digest tells which rows are kept
    runs = [str(job.out) for job in jobs]
    config: Any = read(measure.config, [*runs, *shlex.split(c.evaluate), f"--out={out}"])
    settings = measure.check(config, [job.wanted for job in jobs])
    kept = kept_rows(store, measure, settings)
    if c.commands:
        show_commands(to_train(jobs, kept))
        return 0

    # Training. A source that was trained anew may decide that a row does not count any more
    while todo := to_train(jobs, kept):
        prepare_data(todo)
        train_all(ready(todo), c.jobs)

    # Measuring
    left = [(job, *state(job, kept)) for job in jobs]
    lost = without_source(left)
    diverged = [{"name": job.name, **job.fields, **lost[job.out]} for job in jobs if job.out in lost]
    at = [f"{job.name}={find_checkpoint(job.out, 'last')}" for job, what, _ in left if what == "trained"]
    if alone := sum(what == "kept" for _, what, _ in left):
        print(f"{alone} of {len(jobs)} rows are kept from {store.path}, without a folder", flush=True)
    new: list[Row] = []
    if at:
        # as checked for all rows: those that are measured now may read more than the others
        agreed = {"block_size": settings["block_size"]} if hasattr(config, "block_size") else {}
        session = measure.session(replace(config, checkpoints=at, **agreed))
        new = measure_runs(measure, session, store, {job.name: job.fields for job in jobs})
        settings = session.settings
    elif kept:
        settings = next(iter(kept.values()))["settings"]
    else:
        names = ", ".join(row["name"] for row in diverged)
        raise UserError(f"no run of this table has numbers; diverged: {names}")
    still_alike = partial(kept_rows, store, measure, settings)  # another table may write there, too
    store.put([{**common_fields(measure, settings), **row} for row in diverged], still_alike)

    # Showing, also rows that were not asked for now; of a tuned table also the ratios to its first row
    rows = in_order(store, measure, [job.name for job in jobs])
    now = commit()
    if earlier := [row["name"] for row in rows if row.get("training", {}).get("commit", now) != now]:
        print(f"note: trained at another commit: {', '.join(earlier)}", file=sys.stderr)
    show(measure, store, rows, out, c)
    if c.tuned:
        show_ratios(c, rows, trials)
    return exit_code([*new, *diverged])


def show_ratios(c: TableConfig, rows: list[Row], store: Store) -> None:
    """Prints and writes each row's perplexity over the first row's; `store`: of the trials."""
    names = {row.get("row") for row in rows}
    trials = [t for t in trials_in(store) if t["row"] in names and t["trial"] < c.trials]
    if not trials or not (found := ratios.compare(rows, trials)).best:
        return
    out = beside(Path(c.results) / c.name, ".ratios")
    drawn = figures.write(ratios.forest(found), out, c.figures)
    pace = ratios.pace_of(Path(c.cost), found.first) if c.cost else {}
    view = ratios.view(found, ratios.costs(rows, found.first, pace))
    print("", view.markdown, *drawn, sep="\n")
    view.write(out)


def search(c: TableConfig, store: Store) -> int:
    """Searches each row's best point, and writes the view of the trials; the exit code. TrainingsStopped at a
    signal."""
    # UserError for a row, or for flags of the table's measure, that cannot be: before any training
    jobs_of(replace(c, seeds=[c.tune_seed]))
    read(find_measure(c.measure).config, ["RUN", *shlex.split(c.evaluate)])
    trials = Search(c, store)
    if c.commands:
        show_commands(trials.to_do())
        return 0
    try:
        while todo := trials.to_do():
            prepare_data(todo)
            train_all(ready(todo), c.jobs, trials.record)
    finally:
        if trials.trials:
            view = search_view([*trials.trials.values()])
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
    arguments, _ = split_flags(rest, {f.name: f.type for f in fields(TableConfig)})
    if run := next((a for a in arguments if Path(a).is_dir()), ""):
        raise UserError(f"{run} is a folder: of runs give --measure=NAME, or python eval_diversity.py {run}")
    c = read(TableConfig, argv, __doc__)
    if not c.rows:
        raise UserError("rows: give the file that has them, such as config/tables/heads.py")
    if c.search and any(flag.partition("=")[0] == "--tuned" for flag in rest):
        raise UserError("tuned: --search makes the trials, and --tuned alone the table at their best points")
    store = Store.beside(Path(c.results) / c.name)
    try:
        return search(c, store) if c.search else table(c, store)
    except TrainingsStopped as e:
        print("stopped; what is trained is saved: run it again to go on", file=sys.stderr)
        return 128 + e.args[0]


if __name__ == "__main__":
    cli(main)
