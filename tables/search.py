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
from tables.jobs import ByName, Job, name_of, note_changed_heads, sources_first, uses_first
from tables.names import check_apart
from tables.settings import TableConfig
from tables.store import Row, Store
from tables.views import View, table
from tables.workers import train_all
from training.run import difference

if TYPE_CHECKING:  # importing it takes seconds
    from optuna.samplers import BaseSampler

Point = dict[str, float]  # setting -> value
NAME, DEFINITION = "search", 1
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
    """All trials of the store, of this definition of a search. UserError if it has others than ours."""
    trials = [row for row in store.rows(NAME) if row["definition"] == DEFINITION]
    with reading(store.path or ""):
        for row in trials:
            checked({key: row[key] for key in TRIAL}, TRIAL)
            math.isfinite(row["nll"])  # TypeError for what is no number
    return trials


def trials_store(c: TableConfig, store: Store) -> Store:
    """Where a table's best points are: `tuning`, its own store or, as long as that has no search, the
    repository's results/NAME.jsonl: so a row is repeated elsewhere at the point of the table there."""
    if c.tuning:
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
    draws = [2**k for k in range(design.bit_length()) if 2**k <= design]
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
    """The trials of a table's rows: what is asked for, and the store with those that are over.

    A trial is trained at its point and evaluated at its end alone or, where its configuration lists
    `eval_steps`, at these: then the lowest evaluation counts.
    """

    def __init__(self, c: TableConfig, store: Store):
        self.c, self.store = c, store
        self.names = [name_of(row) for row in c.rows]
        self.kept: ByName = {row["name"]: row for row in trials_in(store)}
        for name in c.own_space.keys() - {*self.names}:  # --rows may leave out some of the file's
            if c.config or not find(f"config/{name}.py").is_file():
                raise UserError(f"own_space: there is no row {name!r}")

    def check(self) -> None:
        """UserError for what cannot be searched, of any row, and for trials of another search."""
        self.check_settings()
        lead = self.shared(self.c.rows[0])
        every = [*lead, *(job for row in self.c.rows[1:] for job in self.shared(row, lead[0]))]
        check_apart(job.out.name for job in every)
        for job in every:
            job.wanted
        note_changed_heads(trial for trial in self.kept.values() if trial["row"] in self.names)

    def check_settings(self) -> None:
        """UserError for trials of another search."""
        for trial in trials_in(self.store):
            name, before = trial["row"], {"own_space": {}} | trial["settings"]
            if name in self.names and (found := difference(before, self.settings(name))):
                path, remedy = self.store.path, "use another --name, or take its points by --tuning"
                raise UserError(f"{path} holds trials of another {found}: {remedy}={path}")

    def settings(self, name: str) -> dict[str, Any]:
        """What two trials of a row must share."""
        keys = ("overlay", "flags", "tune_seed", "space", "design")
        return {key: getattr(self.c, key) for key in keys} | {"own_space": self.c.own_space.get(name, {})}

    def trials(self, row: str) -> list[Row]:
        return trials_of(self.kept.values(), name_of(row), self.c.trials)

    # -- what is asked for ---------------------------------------------------

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
        return Job.make(row, self.c.tune_seed, self.c, first, flags, f"-t{index:02d}", **at)

    def shared(self, row: str, first: Job | None = None) -> list[Job]:
        """A row's trials at the points that all rows share; one where nothing is searched.

        Points of trials that are there stay as they are. A setting of the row's own is drawn beside the
        others, which stay the same.
        """
        c, space = self.c, self.space(row)
        count = min(c.design, c.trials) if space else 1
        own = c.space | c.own_space.get(name_of(row), {})
        drawn = [a | b for a, b in zip(points(own, count), points(c.space, count))]
        for trial in (*self.kept.values(), *self.trials(row)):
            if trial["trial"] < count:
                keys = own if trial["row"] == name_of(row) else c.space
                drawn[trial["trial"]] |= {k: v for k, v in trial["point"].items() if k in keys}
        at = [{key: point[key] for key in space} for point in drawn]
        return [self.job(row, first, index, point) for index, point in enumerate(at)]

    def to_do_of(self, row: str, first: Job | None = None) -> list[Job]:
        """The row's trials that can be started now: at the shared points, or the one after its others."""
        shared, space = self.shared(row, first), self.space(row)
        waiting = self.not_over(shared)
        for index in range(len(shared), self.c.trials if space else 0):
            if waiting:
                break
            known = {trial["trial"]: trial["point"] for trial in self.trials(row)}
            before = [trial for trial in self.trials(row) if trial["trial"] < index]
            waiting = self.not_over([self.job(row, first, index, known.get(index) or propose(space, before))])
        return waiting

    def to_do(self) -> list[Job]:
        """All trials that can be started now. Rows that start from the first row's best trial wait for its
        trials, and need that one's folder."""
        todo = lead = self.to_do_of(self.c.rows[0])
        for row in self.c.rows[1:]:
            if not uses_first(row):
                todo = todo + self.to_do_of(row)
            elif not lead:
                first = self.best_of_first()
                waiting = self.to_do_of(row, first)
                needed = [first] if waiting and first not in todo and not first.result() else []
                todo = needed + todo + waiting
        return todo

    def best_of_first(self) -> Job:
        """The first row's best trial. UserError if it has none."""
        row = self.c.rows[0]
        best = best_of(self.trials(row))
        if best is None:
            raise UserError(f"all trials of {self.names[0]} diverged, and others start from the best of them")
        return self.job(row, None, best["trial"], best["point"])

    # -- what is done --------------------------------------------------------

    def not_over(self, jobs: Iterable[Job]) -> list[Job]:
        """The trials that are still to be trained. UserError if one was trained otherwise than it is asked
        for."""
        for job in jobs:
            self.record(job)
        return [job for job in jobs if job.out.name not in self.kept]

    def check_trial(self, job: Job, training: dict[str, Any]) -> None:
        """UserError if the trial's `training` is another than it is asked for. The lowest of its evaluations
        counts, so the steps of these are a part of it."""
        steps = [{"eval_steps": evaluated_at(c)} for c in (with_defaults(TrainConfig, training), job.wanted)]
        if found := job.differs(training, self.kept) or difference(*steps):
            raise UserError(f"{self.store.path}: {job.out.name} was trained with another {found}")

    def record(self, job: Job) -> None:
        """Puts the trial into the store if its training is over."""
        if trial := self.kept.get(job.out.name):
            return self.check_trial(job, trial["training"])
        if not (result := job.result()):
            return
        self.check_trial(job, result["training"])
        training, nll = result["training"], result.get("nll", math.inf)
        self.kept[job.out.name] = trial = {
            **{"measure": NAME, "definition": DEFINITION, "settings": self.settings(job.row)},
            **{"name": job.out.name, **job.fields, "trial": job.trial, "point": job.point},
            **{"nll": nll, "diverged": "nll" not in result, "vocab_size": training["vocab_size"]},
            **{"training": training, "commit": commit(), "command": " ".join(sys.argv)},
        }
        self.store.put([trial], self.check_settings)

    def run(self) -> None:
        """All trials. TrainingsStopped at a signal; ChildProcessError if some fail."""
        while todo := self.to_do():
            sources, others = sources_first(todo)
            train_all(sources or others, self.c.jobs, self.record)

    def best_points(self) -> dict[str, list[str]]:
        """The flags of each row's best point. UserError for rows whose search is not over, and for a seed of
        the trials."""
        c, found, missing = self.c, {}, []
        if not c.tuning:
            self.check_settings()
        tuned_at = {t["settings"].get("tune_seed", c.tune_seed) for t in self.kept.values()} or {c.tune_seed}
        if twice := tuned_at & {*c.seeds}:
            raise UserError(f"seeds = {c.seeds}: the rows were tuned at seed {min(twice)}, give others")
        for name, row in zip(self.names, c.rows):
            best, count = best_of(self.trials(row)), c.trials if self.space(row) else 1
            if best is None or len(self.trials(row)) < count:
                missing.append(f"{name} ({len(self.trials(row))} of {count} trials)")
                continue
            if not c.tuning:
                first = self.best_of_first() if uses_first(row) else None
                self.check_trial(self.job(row, first, best["trial"], best["point"]), best["training"])
            found[name] = flags_of(best["point"], self.fixed(row))
        if missing:
            what = ", ".join(missing)
            raise UserError(f"{self.store.path} has no best point yet of {what}: --search makes them")
        return found


def evaluated_at(c: Mapping[str, Any]) -> list[int]:
    """The steps at which a training of the configuration `c` is evaluated, as train.py does it."""
    last, every = c["max_steps"], c["eval_interval"]
    return sorted({last, *(step for step in c["eval_steps"] or range(every, last, every) if step < last)})
