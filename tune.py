"""A search for each row's own best settings: the same trials for every row. What is done is kept.

    python tune.py config/tables/heads.py [--trials=24 --jobs=2 --key=value ...]

Trains each row of a table at the points of a search (table.py's `space`: learning rate and gain) at one seed,
and writes results/NAME.tune.json, .md and the figure: the best point of each row by validation at the end of
training, and what the search bought (expected best validation perplexity against the number of trials).
`table.py --tuned` then trains fresh seeds at the best points. Stop it with Ctrl-C; the same command goes on,
and --trials=24 after 16 goes on, too. On several machines: --commands, see docs/several_machines.md.

All rows have the same number of trials. The first `design` of them are at the same points for all rows: a
scrambled Sobol sequence, a pure function of the space. They do not depend on each other, as the expected best
of n trials asks for (Dodge et al. 2019, arXiv 1909.03004), and spread points find more than a grid's where
one setting matters more than another (Bergstra and Bengio 2012). But eight points over two settings miss the
best one by several per cent, more than heads differ by. So the others are each row's own: Optuna's Gaussian
process asks for the point where it expects the largest improvement on the row's trials so far. It is made
anew from these, so the same trials give the same next point, and the store is the runs and a file, not a
database.

A setting that a row's own flags give is not searched for that row. min_lr is a tenth of the learning rate. In
a row's flags {first} is the checkpoint of the first row's best trial, and {gain} that trial's gain.
"""

from evaluation.settings import TableConfig
from runtime.door import Program

program = Program(__name__, __doc__, TableConfig, "scipy", "tabulate", "optuna", "matplotlib")

import sys
from dataclasses import fields

from config.defaults import TrainConfig
from evaluation.runs import Run, data_of, show_commands, uses_first, words_of
from evaluation.tuning import Point, Store, Trial, best_of, flags_of, own_keys, points, propose, write_report
from runtime.configurator import cli
from runtime.errors import UserError
from runtime.files import check_writable
from runtime.workers import Stopped, train_all
from table import check_rows, tuning_file


def space_of(row: str, c: TableConfig) -> dict[str, list[float]]:
    """What is searched for a row: its own flags are fixed."""
    own = own_keys(words_of(row)[1:])
    return {key: limits for key, limits in c.space.items() if key not in own}


def trial_at(row: str, c: TableConfig, first: Run | None, index: int, point: Point) -> Trial:
    """A trial, evaluated at its end alone. `first`: the first row's best trial."""
    steps = Run.make(row, c.tune_seed, c, first).wanted["max_steps"]
    flags = [*flags_of(point, own_keys(words_of(row)[1:])), f"--eval_interval={steps}", "--eval_windows=0"]
    return Trial.make(row, c.tune_seed, c, first, flags, f"-t{index:02d}", index=index, point=point)


def trials_of(row: str, c: TableConfig, first: Run | None = None) -> list[Trial]:
    """The trials of a row at the points that all rows share."""
    space = space_of(row, c)
    at = points(c.space, min(c.design, c.trials) if space else 1)
    return [
        trial_at(row, c, first, i, {key: value for key, value in point.items() if key in space})
        for i, point in enumerate(at)
    ]


def trial_after(row: str, c: TableConfig, first: Run | None, index: int, store: Store) -> Trial | None:
    """A row's further trial, which follows from those before it; None where there is nothing to search."""
    space, before = space_of(row, c), store.of_row(words_of(row)[0], index)
    if not space:
        return None
    known = store.trials.get((words_of(row)[0], index))
    return trial_at(row, c, first, index, known["point"] if known else propose(space, before))


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
    settings = {key: getattr(c, key) for key in ("overlay", "flags", "tune_seed", "space", "design")}
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
    # a trial that diverged is over, too; any other failure is no result, and the next one would fail as well
    train_all(take_over(trials, store), c.jobs, lambda trial, _: not take_over([trial], store), go_on=False)


def best_trial(c: TableConfig, store: Store) -> Trial:
    """The first row's. UserError if it has none."""
    name = words_of(c.rows[0])[0]
    best = best_of(store.of_row(name, c.trials))
    if best is None:
        raise UserError(f"all trials of {name} diverged, and others start from the best of them")
    return trial_at(c.rows[0], c, None, best["trial"], best["point"])


def later_rows(c: TableConfig) -> list[str]:
    """The rows that wait for the first row's best trial."""
    return [row for row in c.rows if uses_first(row)]


def search_rows(rows: list[str], c: TableConfig, store: Store, first: Run | None = None) -> None:
    """All trials of these rows: those at the shared points, then one of each row at a time."""
    search([t for row in rows for t in trials_of(row, c, first)], c, store)
    for index in range(c.design, c.trials):
        further = [trial_after(row, c, first, index, store) for row in rows]
        search([t for t in further if t], c, store)


def search_all(c: TableConfig, store: Store) -> None:
    """All trials; the first row's before those of the rows that wait for it."""
    later = later_rows(c)
    if later:
        search_rows(c.rows[:1], c, store)
    search_rows([row for row in c.rows if row not in later], c, store)
    if later:
        first = best_trial(c, store)
        if next_trials(later, c, store, first):
            train_all([first])  # whose folder they need, if it is not there any more
        search_rows(later, c, store, first)


def next_trials(rows: list[str], c: TableConfig, store: Store, first: Run | None = None) -> list[Trial]:
    """Those that are to do and can be started now: at the shared points, or the one after a row's others."""
    todo = take_over([t for row in rows for t in trials_of(row, c, first)], store)
    waiting = {t.row for t in todo}
    for row in rows:
        index = len(trials_of(row, c, first))
        while words_of(row)[0] not in waiting and index < c.trials:
            trial = trial_after(row, c, first, index, store)
            if trial is None:
                break
            if take_over([trial], store):
                todo.append(trial)
                break
            index += 1
    return todo


def commands(c: TableConfig, store: Store) -> None:
    """Prints a line for each trial that is still to do and that can be started now."""
    later, first = later_rows(c), []
    todo = next_trials([row for row in c.rows if row not in later], c, store)
    lead = [t for t in todo if t.row == words_of(c.rows[0])[0]]
    if later and lead:
        print(
            f"# {len(later)} rows start from the best trial of {lead[0].row}: "
            f"once its {c.trials} trials are finished, --commands says theirs",
            file=sys.stderr,
        )
    elif later:
        best = best_trial(c, store)
        waiting = next_trials(later, c, store, best)
        first = [best] if waiting and not best.finished else []
        todo += waiting
    show_commands(first, todo)
    if any(t.index < c.trials - 1 for t in todo):
        print("# once these are finished, --commands says the trials that follow from them", file=sys.stderr)


@program
def main(c: TableConfig) -> int:
    store = check(c)
    if c.commands:
        commands(c, store)
        return 0
    code = 0
    try:
        if c.partial:
            next_trials([row for row in c.rows if not uses_first(row)], c, store)
        else:
            search_all(c, store)
    except Stopped as e:
        print("stopped; what is trained is saved: run it again to go on", file=sys.stderr)
        code = 128 + e.args[0]
    if store.trials:
        print(
            "", write_report(store, [words_of(r)[0] for r in c.rows], c.space, c.design, c.trials), sep="\n"
        )
    return code


if __name__ == "__main__":
    cli(main)()
