"""A search for each row's own best settings: the same trials for every row. What is done is kept.

    python tune.py config/tables/heads.py [--trials=16 --jobs=2 --key=value ...]

Trains each row of a table at the points of a search (table.py's `space`: learning rate and gain) at one seed,
and writes results/NAME.tune.json, .md and the figure: the best point of each row by validation at the end of
training, and what the search bought (expected best validation perplexity against the number of trials).
`table.py --tuned` then trains fresh seeds at the best points. Stop it with Ctrl-C; the same command goes on,
and --trials=16 after 8 goes on, too. Several of them, on one machine or several, share the work:
docs/several_machines.md.

The points are known in advance: a scrambled Sobol sequence, a pure function of the space. So all rows have
the same budget and the same points, and any number of workers go on without talking to each other. Points
spread like random ones find more than a grid's of the same number, where one setting matters more than
another (Bergstra and Bengio 2012). There is no adaptive sampler (Optuna's TPE, the other choice): it would
give each row other points, and draws that depend on each other, which the expected best of n trials must not
(Dodge et al. 2019, arXiv 1909.03004). What is left of a library is its store of trials, which is a file here.

A setting that a row's own flags give is not searched for that row. min_lr is a tenth of the learning rate. In
a row's flags {first} is the checkpoint of the first row's best trial, and {gain} that trial's gain.
"""

if __name__ == "__main__":
    from runtime import configurator

    configurator.quiet_imports()

import sys
from dataclasses import fields

from config.defaults import TrainConfig
from evaluation.runs import Run, data_of, show_commands, uses_first, words_of
from evaluation.tuning import Store, Trial, best_of, flags_of, own_keys, points, write_report
from runtime.configurator import cli, configure, help_text, wants_help
from runtime.errors import UserError
from runtime.files import check_writable
from runtime.workers import Stopped, train_all
from table import TableConfig, check_rows, tuning_file


def trials_of(row: str, c: TableConfig, first: Run | None = None) -> list[Trial]:
    """The trials of a row, evaluated at their end alone. `first`: the first row's best trial."""
    own = own_keys(words_of(row)[1:])
    searched = c.space.keys() - own
    steps = Run.make(row, c.tune_seed, c, first).wanted["max_steps"]
    out = []
    for i, at in enumerate(points(c.space, c.trials if searched else 1)):
        point = {key: value for key, value in at.items() if key in searched}
        flags = [*flags_of(point, own), f"--eval_interval={steps}"]
        out.append(Trial.make(row, c.tune_seed, c, first, flags, f"-t{i:02d}", index=i, point=point))
    return out


def check_space(c: TableConfig) -> None:
    """UserError naming what cannot be searched."""
    numbers = {f.name for f in fields(TrainConfig) if f.type is float}
    if not c.space:
        raise UserError("space = {}: give a setting to search, such as learning_rate = [1e-3, 8e-3]")
    for key, limits in c.space.items():
        if key not in numbers:
            raise UserError(f"space: {key!r} is no setting of train.py that is a float")
        numeric = isinstance(limits, (list, tuple)) and all(type(v) in (int, float) for v in limits)
        if not numeric or len(limits) != 2 or not 0 < limits[0] < limits[1] < float("inf"):
            raise UserError(f"space: {key} = {limits!r}: give [lowest, highest], both above 0")


def check(c: TableConfig) -> Store:
    """The file of trials. UserError for what cannot work, of any row."""
    check_rows(c)
    check_space(c)
    lead = trials_of(c.rows[0], c)
    every = [*lead, *(t for row in c.rows[1:] for t in trials_of(row, c, lead[0]))]
    if len({t.out for t in every}) < len(every):
        raise UserError("rows hold one twice: each row is to be there once")
    for trial in every:
        trial.wanted
    path = tuning_file(c)
    check_writable(path)
    settings = {key: getattr(c, key) for key in ("overlay", "flags", "tune_seed", "space")}
    store = Store(path, settings, {"trials": c.trials, "command": " ".join(sys.argv)})
    now, had = data_of(lead[0].wanted), next((t["data_sha256"] for t in store.trials.values()), None)
    if now and had and now != had:
        raise UserError(
            f"{path} holds trials of another training text ({had[:12]}, now {now[:12]}): use another --name"
        )
    return store


def take_over(trials: list[Trial], store: Store) -> list[Trial]:
    """Those that are still to do. What is over and not in the file yet is put there."""
    new, todo = [], []
    for trial in trials:
        if store.has(trial):
            continue
        ended = trial.ended()
        if ended:
            new.append(trial.entry(ended))
        else:
            todo.append(trial)
    if new:
        store.add(new)
    return todo


def search(trials: list[Trial], c: TableConfig, store: Store) -> None:
    """Trains the trials that are not over. Stopped at a signal; ChildProcessError at the first that fails."""

    def done(trial: Trial) -> bool:
        if store.has(trial):
            return True
        ended = trial.ended()
        if ended:
            store.add([trial.entry(ended)])
        else:
            store.read()  # a worker elsewhere, whose runs have another folder
        return store.has(trial)

    take_over(trials, store)
    # a trial that diverged is over, too; any other failure is no result, and the next one would fail as well
    train_all(trials, c.jobs, done, lambda trial, _: done(trial), go_on=False)


def best_trial(c: TableConfig, store: Store) -> Trial:
    """The first row's. UserError if it has none."""
    lead = trials_of(c.rows[0], c)
    best = best_of(store.of_row(lead[0].row, len(lead)))
    if best is None:
        raise UserError(f"all trials of {lead[0].row} diverged, and others start from the best of them")
    return lead[best["trial"]]


def later_rows(c: TableConfig) -> list[str]:
    """The rows that wait for the first row's best trial."""
    return [row for row in c.rows if uses_first(row)]


def search_all(c: TableConfig, store: Store) -> None:
    """All trials; first those that do not wait for the first row's."""
    later = later_rows(c)
    if later:
        search(trials_of(c.rows[0], c), c, store)
    search([t for row in c.rows if row not in later for t in trials_of(row, c)], c, store)
    if later:
        first = best_trial(c, store)
        trials = [t for row in later for t in trials_of(row, c, first)]
        if take_over(trials, store):
            train_all([first])  # whose folder they need, if it is not there any more
        search(trials, c, store)


def commands(c: TableConfig, store: Store) -> None:
    """Prints a line for each trial that is still to do and that can be started now."""
    later, first = later_rows(c), []
    todo = take_over([t for row in c.rows if row not in later for t in trials_of(row, c)], store)
    lead = [t for t in todo if t.row == words_of(c.rows[0])[0]]
    if later and lead:
        print(
            f"# {len(later)} rows start from the best trial of {lead[0].row}: "
            f"once its {len(lead)} lines are finished, --commands says theirs",
            file=sys.stderr,
        )
    elif later:
        best = best_trial(c, store)
        waiting = take_over([t for row in later for t in trials_of(row, c, best)], store)
        first = [best] if waiting and not best.finished else []
        todo += waiting
    show_commands(first, todo)


def main(argv: list[str]) -> int:
    if wants_help(argv):
        print(__doc__, help_text(TableConfig), sep="\n")
        return 0
    c = configure(TableConfig, argv)
    store = check(c)
    if c.commands:
        commands(c, store)
        return 0
    code = 0
    try:
        if c.partial:
            take_over([t for row in c.rows if not uses_first(row) for t in trials_of(row, c)], store)
        else:
            search_all(c, store)
    except Stopped as e:
        print("stopped; what is trained is saved: run it again to go on", file=sys.stderr)
        code = 128 + e.args[0]
    if store.trials:
        print("", write_report(store, [words_of(r)[0] for r in c.rows], c.space, c.trials), sep="\n")
    return code


if __name__ == "__main__":
    cli(main)()
