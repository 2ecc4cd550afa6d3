"""A search for each row's own best settings: its points, its trials, and what they bought.

All points are Optuna's. The first `design` trials are at the same points for all rows: its QMCSampler, a
scrambled Sobol sequence. They do not depend on each other, as the expected best of n trials asks for (Dodge
et al. 2019, arXiv 1909.03004), and spread points find more than a grid's where one setting matters more than
another (Bergstra and Bengio 2012). Eight points over two settings miss the best one by several per cent,
which is more than heads differ by. So the others are each row's own: its GPSampler, a Gaussian process, asks
for the point where it expects the largest improvement on the row's trials so far.

A trial is a row of the store under the measure "search", and says its point. A study of Optuna is made anew
of these: the same trials give the same next point, and there is no second store to agree with.
"""

import math
import shlex
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.config import Natural, Positive, Space, checked, with_defaults
from common.errors import UserError, reading
from common.places import CODE, commit, find
from config.defaults import TrainConfig
from evaluate.metrics import perplexity
from tables.jobs import OVER, Job, name_of, state, to_train
from tables.settings import TableConfig
from tables.store import Row, Store
from tables.views import View, table
from training.run import difference

if TYPE_CHECKING:  # importing it takes seconds
    from optuna.samplers import BaseSampler

Point = dict[str, float]  # setting -> value
NAME = "search"
NEVER = 10**9  # steps between evaluations of a trial: there is one at its end
TRIAL = {"row": str, "trial": Natural, "point": dict[str, float], "vocab_size": Positive, "training": dict}


# -----------------------------------------------------------------------------
# Points


def points(space: Space, count: int) -> list[Point]:
    """The first `count` points of a scrambled Sobol sequence, on a log scale in each setting: a pure function
    of the space."""
    from optuna.samplers import QMCSampler

    if not space:
        return [{}] * count
    lowest = {key: low for key, (low, _) in space.items()}  # a trial tells the sampler of the space
    return ask_optuna(space, lambda: QMCSampler(scramble=True, seed=0), [(lowest, 0.0)], count)


def propose(space: Space, trials: list[Row]) -> Point:
    """The next point of a row after these trials: where a Gaussian process expects the largest improvement.

    A corner that it asks for again would be the same training: the next of `points` takes its place.
    """
    from optuna.samplers import GPSampler

    within = [{key: trial["point"][key] for key in space} for trial in trials]
    known = [*zip(within, losses(trials))]
    (point,) = ask_optuna(space, lambda: GPSampler(seed=0, n_startup_trials=1), known, 1)
    return point if point not in within else points(space, len(trials) + 1)[-1]


def ask_optuna(
    space: Space, sampler: Callable[[], "BaseSampler"], known: Iterable[tuple[Point, float]], count: int
) -> list[Point]:
    """The points that Optuna's sampler asks for after the `known` ones and their losses, to three digits."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    limits: dict[str, optuna.distributions.BaseDistribution] = {
        key: optuna.distributions.FloatDistribution(low, high, log=True) for key, (low, high) in space.items()
    }
    with warnings.catch_warnings(action="ignore", category=optuna.exceptions.ExperimentalWarning):
        study = optuna.create_study(sampler=sampler())
    for point, loss in known:
        study.add_trial(optuna.trial.create_trial(params=point, distributions=limits, value=loss))
    exact = [study.ask(limits).params for _ in range(count)]
    return [
        {key: min(max(float(f"{point[key]:.3g}"), low), high) for key, (low, high) in space.items()}
        for point in exact
    ]


def flags_of(point: Point, fixed: set[str]) -> list[str]:
    """train.py's flags for a point, but for the keys that the row sets itself (`fixed`).

    The lowest learning rate is a tenth of the highest.
    """
    flags = [f"--{key}={value!r}" for key, value in point.items() if key not in fixed]
    if "learning_rate" in point and not fixed & {"learning_rate", "min_lr"}:
        flags.append(f"--min_lr={point['learning_rate'] / 10:.3g}")
    return flags


# -----------------------------------------------------------------------------
# Trials


def trials_in(store: Store) -> list[Row]:
    """All trials of the store. UserError if it has others than ours."""
    trials = store.rows(NAME)
    with reading(store.path or ""):
        for row in trials:
            checked({key: row[key] for key in TRIAL}, TRIAL)
            math.isfinite(row["nll"])  # TypeError for what is no number
    return trials


def trials_store(c: TableConfig, store: Store) -> Store:
    """Where a table's best points are: `tuning`, its own store or, as long as that has no search, the
    repository's results/NAME.jsonl: so a row is repeated elsewhere at the point of the table there."""
    if c.tuning:
        if not Path(c.tuning).is_file():
            raise UserError(f"tuning: there is no file {c.tuning}")
        return Store(Path(c.tuning))
    committed = Store(CODE / "results" / f"{c.name}.jsonl")
    return store if store.rows(NAME) or not committed.rows(NAME) else committed


def trials_of(rows: Iterable[Row], row: str, count: float = math.inf) -> list[Row]:
    """The row's trials, of the first `count` alone, in their order."""
    trials = [r for r in rows if r["row"] == row and r["trial"] < count]
    return sorted(trials, key=lambda r: r["trial"])


def best_of(trials: list[Row]) -> Row | None:
    """The trial of the lowest validation NLL; None if there is none that did not diverge."""
    sound = [t for t in trials if math.isfinite(t["nll"])]
    return min(sound, key=lambda t: t["nll"], default=None)


def losses(trials: list[Row]) -> list[float]:
    """The validation NLL of each trial; of one that diverged that of a uniform distribution."""
    return [t["nll"] if math.isfinite(t["nll"]) else math.log(t["vocab_size"]) for t in trials]


def expected_best(values: Sequence[float], draws: int) -> float:
    """E[lowest of `draws` values], drawn with replacement from `values`: Dodge et al. 2019, arXiv 1909.03004.

    P(lowest > v_(i)) = ((N - i) / N)^draws for the i-th lowest of N.
    """
    n = len(values)
    above = [((n - i) / n) ** draws for i in range(n + 1)]
    return sum(v * (above[i] - above[i + 1]) for i, v in enumerate(sorted(values)))


WIDER = 1.5


def search_error(values: Sequence[float]) -> float:
    """Standard error of the best of a search's trials: WIDER times what the lowest value varies by if the
    values are drawn anew (bootstrap, exact).

    A search that was nearly as good at several points has a small one; where one trial is far ahead, nobody
    knows what the next ones would have found. The bootstrap of a minimum is too small, and the trials that
    follow from others are not drawn. With WIDER an interval of 95% tells equal heads apart in 5% or less of
    simulated pairs: bench/search_error.json.
    """
    lowest, n = min(values), len(values)
    excess = [v - lowest for v in values]
    mean, square = expected_best(excess, n), expected_best([e**2 for e in excess], n)
    return WIDER * math.sqrt(max(0.0, square - mean**2))


def search_errors(trials: list[Row]) -> dict[str, tuple[float, int]]:
    """(standard error, degrees of freedom) of each row's search, in nats."""
    each = {row: losses(trials_of(trials, row)) for row in dict.fromkeys(t["row"] for t in trials)}
    return {row: (search_error(values), len(values) - 1) for row, values in each.items()}


# -----------------------------------------------------------------------------
# Views


def best_value(best: Row | None, trials: list[Row], key: str) -> str:
    """The best trial's value of `key`, and which end of those that were tried it is, if it is one."""
    if best is None or key not in best["point"]:
        return "-"
    value = best["point"][key]
    tried = {t["point"][key] for t in trials if key in t["point"]}
    ends = {min(tried): " (lowest)", max(tried): " (highest)"} if len(tried) > 1 else {}
    return f"{value:g}{ends.get(value, '')}"


def view(rows: list[Row]) -> View:
    """The search: a line a row, its best point, and what the trials bought."""
    space, design = rows[0]["settings"]["space"], rows[0]["settings"]["design"]
    design = min(design, 1 + max(r["trial"] for r in rows))
    draws = [2**k for k in range(design.bit_length())]
    extra = any(row["settings"].get("own_space") for row in rows)
    header = ["", "trials", "diverged", *space, *["its own"] * extra, "validation PPL", "± of the search"]
    header += [f"best of {n}" for n in draws]
    body = []
    for row in dict.fromkeys(r["row"] for r in rows):
        trials = trials_of(rows, row)
        best = best_of(trials)
        line = [row, str(len(trials)), str(sum(t["diverged"] for t in trials))]
        line += [best_value(best, trials, key) for key in space]
        keys = trials[0]["settings"].get("own_space", {})
        values = [f"{key.rpartition('.')[2]} {best_value(best, trials, key)}" for key in keys]
        line += [", ".join(values) or "-"] * extra
        ppl = perplexity(best["nll"], 1) if best else math.nan
        error = 1.96 * search_error(losses(trials)) * ppl if len(trials) > 1 else math.nan
        line += [f"{value:.1f}" if math.isfinite(value) else "-" for value in (ppl, error)]
        shared = [t for t in trials if t["trial"] < design]
        enough = [n for n in draws if n <= len(shared)]
        line += [f"{perplexity(expected_best(losses(shared), n), 1):.1f}" for n in enough]
        body.append(line + ["-"] * (len(draws) - len(enough)))
    training = rows[0]["training"]
    steps = ", ".join(f"{n:,}" for n in training.get("eval_steps", []) if n <= training.get("max_steps", n))
    when = f"after {steps} steps, the lowest of them" if steps else "at the end of training"
    return View([table(header, body), NOTE.format(when=when)])


NOTE = (
    "Best point of each row by the validation perplexity {when}, at one seed "
    "(PPL_eps of heads with exact zeros). (lowest), (highest): of the values that were tried; a better one "
    "may lie beyond. ± of the search: 1.96 standard errors of the best trial, 1.5 times what it varies by if "
    "the trials are drawn anew (bootstrap; bench/search_error.json). best of n: expected validation "
    "perplexity of the best of n trials, drawn with replacement from those at the points that all rows "
    "share (Dodge et al. 2019, arXiv 1909.03004), the "
    "exponential of the expected NLL; a trial that diverged counts as a uniform distribution. The row's "
    "further trials go where a Gaussian process expects an improvement. -: not searched, or too few "
    "trials. A table of fresh seeds at the best points: table.py --tuned."
)


# -----------------------------------------------------------------------------
# The search itself


class Search:
    """The trials of a table's rows: those that are over, and which are next.

    A trial is trained at its point and evaluated at its end alone or, where its configuration lists
    `eval_steps`, at these: then the lowest evaluation counts.
    """

    def __init__(self, c: TableConfig, store: Store):
        self.c, self.store = c, store
        self.trials: dict[str, Row] = {trial["name"]: trial for trial in trials_in(store)}
        for name in c.own_space.keys() - {name_of(row) for row in c.rows}:
            if c.config or not find(f"config/{name}.py").is_file():  # --rows may leave out some of the file's
                raise UserError(f"own_space: there is no row {name!r}")

    def trials_of(self, row: str) -> list[Row]:
        return trials_of(self.trials.values(), name_of(row), self.c.trials)

    def settings(self, name: str) -> dict[str, Any]:
        """What two trials of a row must share."""
        keys = ("overlay", "flags", "tune_seed", "space", "design")
        return {key: getattr(self.c, key) for key in keys} | {"own_space": self.c.own_space.get(name, {})}

    def fixed(self, row: str) -> set[str]:
        """The keys that a row's own flags or the table's set: no search changes them."""
        words = [*shlex.split(self.c.flags), *shlex.split(row)]
        return {word[2:].partition("=")[0] for word in words if word.startswith("--")}

    def space(self, row: str) -> Space:
        """What is searched for a row: the table's space and its own, without what is fixed."""
        space, fixed = self.c.space | self.c.own_space.get(name_of(row), {}), self.fixed(row)
        return {key: limits for key, limits in space.items() if key not in fixed}

    def job(self, row: str, first: Job | None, index: int, point: Point) -> Job:
        flags = [*flags_of(point, self.fixed(row)), f"--eval_interval={NEVER}", "--eval_windows=0"]
        at = {"trial": index, "point": point}
        return Job.make(self.c, row, self.c.tune_seed, first, flags, f"-t{index:02d}", **at)

    def check(self, trial: Row, job: Job) -> None:
        """UserError if a trial is of another search than is asked for, or of another training. The lowest of
        its evaluations counts, so the steps of these are a part of it."""
        steps = lambda c: {"eval_steps": evaluated_at(c)}
        found = self.other_settings(trial) or job.differs(trial["training"], self.trials)
        training = with_defaults(TrainConfig, trial["training"])
        self.refuse(trial, found or difference(steps(training), steps(job.wanted)))

    def other_settings(self, trial: Row) -> str:
        """The first setting of a search in which the trial is of another one; "" if there is none."""
        return difference({"own_space": {}} | trial["settings"], self.settings(trial["row"]))

    def refuse(self, trial: Row, found: str) -> None:
        """UserError if something was found that makes the trial one of another search."""
        if found:
            remedy = f"use another --name, or take its points by --tuning={self.store.path}"
            raise UserError(f"{self.store.path}: {trial['name']} is a trial of another {found}: {remedy}")

    # -- what is next --------------------------------------------------------

    def missing(self, row: str, first: Job | None = None) -> list[Job]:
        """The row's next trials: those at the shared points or, after these, the one that they lead to."""
        c, space, there = self.c, self.space(row), self.trials_of(row)
        for trial in there:
            self.check(trial, self.job(row, first, trial["trial"], trial["point"]))
        indices = {trial["trial"] for trial in there}
        shared = min(c.design, c.trials) if space else 1
        if open_ := [index for index in range(shared) if index not in indices]:
            # A setting of the row's own is drawn beside the others, which stay the same, also where another
            # version of Optuna or an older search has drawn those of the other rows
            own = points(c.space | c.own_space.get(name_of(row), {}), shared)
            drawn = [a | b for a, b in zip(own, points(c.space, shared))]
            for trial in (trial for trial in self.trials.values() if trial["trial"] < shared):
                drawn[trial["trial"]] |= {k: v for k, v in trial["point"].items() if k in c.space}
            return [self.job(row, first, i, {key: drawn[i][key] for key in space}) for i in open_]
        index = next((i for i in range(shared, c.trials if space else 0) if i not in indices), None)
        if index is None:
            return []
        before = [trial for trial in there if trial["trial"] < index]
        return [self.job(row, first, index, propose(space, before))]

    def jobs(self) -> list[Job]:
        """The next trials of all rows. Rows that start from the first row's best trial wait for all of its
        trials; then that one comes first."""
        lead, *others = self.c.rows
        todo, source = self.missing(lead), None
        if not todo and any(map(uses_first, others)):
            best = best_of(self.trials_of(lead))
            if best is None:
                why = "and others start from the best of them"
                raise UserError(f"all trials of {name_of(lead)} diverged, {why}")
            source = self.job(lead, None, best["trial"], best["point"])
        for row in others:
            if source or not uses_first(row):
                todo += self.missing(row, source)
        return [source, *todo] if source else todo

    def to_do(self) -> list[Job]:
        """All that can be trained now. Trials that are over are stored first: others follow from them."""
        while True:
            jobs = self.jobs()
            left = [(job, *state(job)) for job in jobs if job.name not in self.trials]
            over = [(job, found) for job, kind, found in left if kind in OVER]
            if not over:
                return to_train(jobs, self.trials)
            for job, found in over:
                self.record(job, found)

    def record(self, job: Job, found: Row) -> None:
        """Stores the trial of a training that is over, and of which so much is found (tables/jobs.py)."""
        if job.name in self.trials:  # trained again, since others start from it
            return
        training, settings = found["training"], self.settings(job.fields["row"])
        trial = {"measure": NAME, "definition": 1, "settings": settings, "name": job.name}
        trial |= {**job.fields, "nll": found.get("nll", math.inf), "diverged": "nll" not in found}
        trial |= {"vocab_size": training["vocab_size"], "training": training}
        self.check(trial, job)
        self.trials[job.name] = trial | {"commit": commit(), "command": " ".join(sys.argv)}

        def alike() -> None:  # another search of these rows may have begun in the file meanwhile
            for other in trials_in(self.store):
                if other["row"] in map(name_of, self.c.rows):
                    self.refuse(other, self.other_settings(other))

        self.store.put([self.trials[job.name]], alike)

    # -- what it has found ---------------------------------------------------

    def best_points(self) -> dict[str, list[str]]:
        """The flags of each row's best point. UserError for a row whose search is not over, and for a seed of
        the trials."""
        c, found = self.c, {}
        tuned_at = {trial["seed"] for trial in self.trials.values()} or {c.tune_seed}
        if twice := tuned_at & {*c.seeds}:
            raise UserError(f"seeds = {c.seeds}: the rows were tuned at seed {min(twice)}, give others")
        first = None
        for row in c.rows:
            trials, count = self.trials_of(row), c.trials if self.space(row) else 1
            best = best_of(trials)
            if best is None or len(trials) < count:
                few = f"{name_of(row)} has {len(trials)} of {count} trials"
                raise UserError(f"{self.store.path}: {few}, and no best point yet: --search makes them")
            if not c.tuning:
                job = self.job(row, first, best["trial"], best["point"])
                self.check(best, job)
                first = first or job
            found[name_of(row)] = flags_of(best["point"], self.fixed(row))
        return found


def uses_first(row: str) -> bool:
    return "{first}" in row or "{gain}" in row


def evaluated_at(c: Mapping[str, Any]) -> list[int]:
    """The steps at which a training of the configuration `c` is evaluated, as train.py does it."""
    last, every = c["max_steps"], c["eval_interval"]
    return sorted({last, *(step for step in c["eval_steps"] or range(every, last, every) if step < last)})
