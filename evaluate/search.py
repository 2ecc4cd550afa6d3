"""A search for each row's own best settings: its points, its trials, and what they bought.

All rows have the same number of trials. The first `design` of them are at the same points for all rows: a
scrambled Sobol sequence, a pure function of the space. They do not depend on each other, as the expected best
of n trials asks for (Dodge et al. 2019, arXiv 1909.03004), and spread points find more than a grid's where
one setting matters more than another (Bergstra and Bengio 2012). Eight points over two settings miss the best
one by several per cent, which is more than heads differ by. So the others are each row's own: Optuna's
Gaussian process asks for the point where it expects the largest improvement on the row's trials so far. It is
made anew from these: the same trials give the same next point, and no database is needed.

A trial is a row of the store under the measure "search".
"""

import math
import sys
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any

from common.config import Space
from common.errors import UserError, reading
from common.places import commit
from config.defaults import TrainConfig
from evaluate import figures
from evaluate.jobs import Ended, Run, data_of, note_changed_heads, show_commands, split, uses_first, words_of
from evaluate.measure import training_of
from evaluate.settings import TableConfig, other_settings
from evaluate.store import Row, Store, check_fields
from evaluate.views import Grid, View
from evaluate.workers import train_all

if TYPE_CHECKING:  # see figures.pyplot
    from matplotlib.figure import Figure

Point = dict[str, float]  # setting -> value
NAME, DEFINITION = "search", 1
FIELDS: dict[str, type | UnionType] = {"row": str, "trial": int, "point": dict, "nll": float | int}
FIELDS |= {"diverged": bool, "vocab_size": int, "training": dict}


# -----------------------------------------------------------------------------
# Points


def points(space: Space, count: int, beside: int = 0) -> list[Point]:
    """The first `count` points of the search: a scrambled Sobol sequence, on a log scale in each setting.

    A pure function of the space: the first 8 of 16 points are the 8 of 8. `beside`: how many settings of
    another space these are to be independent of; the sequence's first dimensions are left to them.
    """
    from scipy.stats import qmc

    if not space:
        return [{}] * count
    powers = math.ceil(math.log2(count))  # Sobol points are balanced in powers of two
    drawn = qmc.Sobol(beside + len(space), scramble=True, rng=0).random_base2(powers)[:count, beside:]

    def value(key: str, x: float) -> float:
        low, high = space[key]
        return rounded(low * (high / low) ** x, space[key])

    return [{key: value(key, x) for key, x in zip(space, at)} for at in drawn]


def rounded(value: float, limits: list[float]) -> float:
    """To three digits, and within the limits."""
    low, high = limits
    return min(max(float(f"{value:.3g}"), low), high)


def propose(space: Space, trials: list[Row]) -> Point:
    """The next point of a row after these trials: where a Gaussian process expects the largest improvement.

    Optuna's GPSampler, made anew from the trials: the same trials give the same point. A corner that it asks
    for again would be the same training: the next of `points` takes its place.
    """
    import optuna
    from optuna.exceptions import ExperimentalWarning

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    limits: dict[str, optuna.distributions.BaseDistribution] = {
        key: optuna.distributions.FloatDistribution(low, high, log=True) for key, (low, high) in space.items()
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        sampler = optuna.samplers.GPSampler(seed=0, n_startup_trials=1)
    study = optuna.create_study(sampler=sampler)
    for trial, nll in zip(trials, losses(trials)):
        point = {key: min(max(trial["point"][key], low), high) for key, (low, high) in space.items()}
        study.add_trial(optuna.trial.create_trial(params=point, distributions=limits, value=nll))
    point = {key: rounded(value, space[key]) for key, value in study.ask(limits).params.items()}
    tried = [trial["point"] for trial in trials]
    return point if point not in tried else points(space, len(trials) + 1)[-1]


def flags_of(point: Point, fixed: set[str]) -> list[str]:
    """train.py's flags for a point, but for the keys that the row sets itself (`fixed`).

    The lowest learning rate is a tenth of the highest.
    """
    flags = [f"--{key}={value!r}" for key, value in point.items()]
    if "learning_rate" in point and not fixed & {"learning_rate", "min_lr"}:
        flags.append(f"--min_lr={point['learning_rate'] / 10:.3g}")
    return flags


def keys_of(words: Sequence[str]) -> set[str]:
    """The keys that flags set."""
    return {word[2:].partition("=")[0] for word in words if word.startswith("--")}


# -----------------------------------------------------------------------------
# Trials


@dataclass(frozen=True)
class Trial(Run):
    """A training at a point of the search, evaluated at its end alone or, where its configuration lists
    `eval_steps`, at these: then the lowest evaluation counts."""

    index: int
    point: Point


def trials_in(store: Store) -> list[Row]:
    """All trials of the store, of this definition of a search. UserError if it has others than ours."""
    trials = [row for row in store.rows(NAME) if row["definition"] == DEFINITION]
    with reading(store.path or Path()):
        for row in trials:
            check_fields(row, FIELDS)
            check_fields(row["point"], dict.fromkeys(row["point"], float | int))
    return trials


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


def search_error(values: Sequence[float]) -> float:
    """Standard error of the best of a search's trials: WIDER times the bootstrap's.

    The bootstrap of a minimum is too small, and the trials that follow from others are not drawn. With WIDER
    an interval of 95% tells equal heads apart in 5% or less of simulated pairs: bench/search_error.py.
    """
    return WIDER * bootstrap_error(values)


WIDER = 1.5


def search_errors(trials: list[Row]) -> dict[str, tuple[float, int]]:
    """(standard error, degrees of freedom) of each row's search, in nats."""
    each = {row: losses(trials_of(trials, row)) for row in dict.fromkeys(t["row"] for t in trials)}
    return {row: (search_error(values), len(values) - 1) for row, values in each.items()}


def bootstrap_error(values: Sequence[float]) -> float:
    """What the lowest value varies by if the values are drawn anew (bootstrap, exact).

    A search that was nearly as good at several points has a small one; where one trial is far ahead, nobody
    knows what the next ones would have found.
    """
    lowest, n = min(values), len(values)
    excess = [v - lowest for v in values]
    mean, square = expected_best(excess, n), expected_best([e**2 for e in excess], n)
    return math.sqrt(max(0.0, square - mean**2))


def expected_perplexity(trials: list[Row], draws: int) -> float:
    """exp of the expected lowest NLL: a geometric mean, in which a trial that is far off counts by its
    logarithm."""
    return math.exp(expected_best(losses(trials), draws))


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
        ppl = math.exp(best["nll"]) if best else math.nan
        error = 1.96 * search_error(losses(trials)) * ppl if len(trials) > 1 else math.nan
        line += [f"{value:.1f}" if math.isfinite(value) else "-" for value in (ppl, error)]
        shared = [t for t in trials if t["trial"] < design]
        enough = [n for n in draws if n <= len(shared)]
        line += [f"{expected_perplexity(shared, n):.1f}" for n in enough]
        body.append(line + ["-"] * (len(draws) - len(enough)))
    training = rows[0]["training"]
    steps = ", ".join(f"{n:,}" for n in training.get("eval_steps", []) if n <= training.get("max_steps", n))
    when = f"after {steps} steps, the lowest of them" if steps else "at the end of training"
    return View([Grid(header, body, "pipe"), NOTE.format(when=when)])


NOTE = (
    "Best point of each row by the validation perplexity {when}, at one seed "
    "(PPL_eps of heads with exact zeros). (lowest), (highest): of the values that were tried; a better one "
    "may lie beyond. ± of the search: 1.96 standard errors of the best trial, 1.5 times what it varies by if "
    "the trials are drawn anew (bootstrap; bench/search_error.py). best of n: expected validation "
    "perplexity of the best of n trials, drawn with replacement from those at the points that all rows "
    "share (Dodge et al. 2019, arXiv 1909.03004), the "
    "exponential of the expected NLL; a trial that diverged counts as a uniform distribution. The row's "
    "further trials go where a Gaussian process expects an improvement. -: not searched, or too few "
    "trials. A table of fresh seeds at the best points: table.py --tuned."
)


def best_so_far(trials: list[Row], design: int) -> list[float]:
    """Validation perplexity that n = 1, 2, ... trials buy: the expected best of n at the shared points, then
    the best of all that were made."""
    shared, nll = [t for t in trials if t["trial"] < design], losses(trials)
    expected = [expected_perplexity(shared, n) for n in range(1, len(shared) + 1)]
    return expected + [math.exp(min(nll[:n])) for n in range(len(shared) + 1, len(trials) + 1)]


def figure(rows: list[Row]) -> "Figure | None":
    """Best validation perplexity against the number of trials: a panel a row, softmax behind it. None without
    trials."""
    design = rows[0]["settings"]["design"]
    each = {row: trials_of(rows, row) for row in dict.fromkeys(r["row"] for r in rows)}
    curves = {row: best_so_far(trials, design) for row, trials in each.items() if len(trials) > 1}
    if not curves:
        return None
    base = curves.get(figures.BASELINE)
    fig, axes = figures.panels([r for r in curves if r != figures.BASELINE] or list(curves), 1.6)
    for ax, row in axes:
        for values, colour in ((base, figures.BASELINE_COLOUR), (curves[row], "tab:blue")):
            if values:
                ax.plot(range(1, len(values) + 1), values, color=colour, lw=1.2, marker=".", ms=3)
        ax.set_yscale("log")
    figures.plain_numbers(axes[0][0])
    fig.supxlabel(f"trials; grey: {figures.BASELINE}; the first {design} are at shared points")
    fig.supylabel("best validation perplexity")
    return fig


def draw(rows: list[Row], out: Path) -> list[Path]:
    """OUT.png: `figure`."""
    fig = figure(rows)
    return figures.write(fig, out) if fig else []


def write_views(store: Store, out: Path) -> str:
    """OUT.md and the figure of all trials in the store; the Markdown."""
    rows = trials_in(store)
    with reading(store.path or out):
        shown = view(rows)
    shown.write(out)
    draw(rows, out)
    return shown.markdown


# -----------------------------------------------------------------------------
# The search itself


def fixed_keys(row: str, c: TableConfig) -> set[str]:
    """The keys that a row's own flags or the table's set: no search changes them."""
    return keys_of([*split(c.flags), *words_of(row)[1:]])


def space_of(row: str, c: TableConfig) -> Space:
    """What is searched for a row: the table's space and its own, without what is fixed."""
    space, fixed = c.space | c.own_space.get(words_of(row)[0], {}), fixed_keys(row, c)
    return {key: v for key, v in space.items() if key not in fixed}


def trial_settings(c: TableConfig, row: str) -> dict[str, Any]:
    """What two trials of a row must share."""
    keys = ("overlay", "flags", "tune_seed", "space", "design")
    return {key: getattr(c, key) for key in keys} | {"own_space": c.own_space.get(row, {})}


def check_settings(c: TableConfig, trials: Iterable[Row], path: Path | None, remedy: str) -> None:
    """UserError with the `remedy` for trials of c's rows, in the file `path`, of other settings than c's."""
    rows = {words_of(row)[0] for row in c.rows}
    for trial in trials:
        if trial["row"] in rows and (
            differences := other_settings(
                {"own_space": {}} | trial["settings"], trial_settings(c, trial["row"])
            )
        ):
            raise UserError(f"{path} holds trials of other settings ({'; '.join(differences)}): {remedy}")


class Search:
    """The trials of a table's rows: what is asked for, and the store with those that are over."""

    def __init__(self, c: TableConfig, store: Store):
        """UserError for what cannot be searched, of any row, and for trials of other settings or text."""
        for space in (c.space, *c.own_space.values()):
            check_space(space)
        self.c, self.store = c, store
        kept = trials_in(store)
        check_settings(c, kept, store.path, "use those settings, or another --name")
        names = {words_of(row)[0] for row in c.rows}
        note_changed_heads(row for row in kept if row["row"] in names)
        lead = self.shared(c.rows[0])
        every = [*lead, *(t for row in c.rows[1:] for t in self.shared(row, lead[0]))]
        if len({t.out for t in every}) < len(every):
            raise UserError("rows name one twice: give each row once")
        for trial in every:
            trial.wanted
        now = data_of(lead[0].wanted)
        before = next((row["training"].get("data_sha256") for row in kept), None)
        if now and before and now != before:
            raise UserError(
                f"{store.path} holds trials of another training text ({before[:12]}, now {now[:12]}): "
                "use another --name"
            )

    def trials(self, row: str) -> list[Row]:
        return trials_of(trials_in(self.store), words_of(row)[0], self.c.trials)

    def trial(self, row: str, first: Run | None, index: int, point: Point) -> Trial:
        c = self.c
        steps = Run.make(row, c.tune_seed, c, first).wanted["max_steps"]
        flags = [*flags_of(point, fixed_keys(row, c)), f"--eval_interval={steps}", "--eval_windows=0"]
        return Trial.make(row, c.tune_seed, c, first, flags, f"-t{index:02d}", index=index, point=point)

    def shared(self, row: str, first: Run | None = None) -> list[Trial]:
        """A row's trials at the points that all rows share; one where nothing is searched."""
        c, space, extra = self.c, space_of(row, self.c), self.c.own_space.get(words_of(row)[0], {})
        count = min(c.design, c.trials) if space else 1
        at = zip(points(c.space, count), points(extra, count, beside=len(c.space)))
        row_points = [{k: v for k, v in (shared | extra).items() if k in space} for shared, extra in at]
        return [self.trial(row, first, i, point) for i, point in enumerate(row_points)]

    def further(self, row: str, first: Run | None, index: int) -> Trial:
        """Trial number `index` of a row, which follows from those before it."""
        trials, space = self.trials(row), space_of(row, self.c)
        # a point of a setting that the row's flags set by now would win over them
        known = {t["trial"]: t["point"] for t in trials if t["point"].keys() == space.keys()}
        before = [t for t in trials if t["trial"] < index]
        return self.trial(row, first, index, known.get(index) or propose(space, before))

    def is_over(self, trial: Trial) -> bool:
        """Whether the store has this trial; it is put there if its training is over."""
        rows = {row["name"]: row for row in trials_in(self.store)}
        row = rows.get(trial.out.name)
        if row is not None and not trial.differs(row["training"], rows):
            return True
        ended = trial.ended()
        if ended is None:
            return False
        self.store.put([self.row_of(trial, ended)])
        return True

    def row_of(self, trial: Trial, ended: Ended) -> Row:
        """What the store says of a trial that is over."""
        return {
            **{"measure": NAME, "definition": DEFINITION, "settings": trial_settings(self.c, trial.row)},
            **{"name": trial.out.name, **trial.fields, "trial": trial.index, "point": trial.point},
            **{"nll": math.inf if ended.nll is None else ended.nll, "diverged": ended.nll is None},
            **{"vocab_size": ended.config["vocab_size"], "training": training_of(ended.config)},
            **{"commit": commit(), "command": " ".join(sys.argv)},
        }

    def to_do(self, rows: list[str], first: Run | None = None) -> list[Trial]:
        """Those that can be started now: at the shared points, or the one after a row's others."""
        todo = []
        for row in rows:
            shared = self.shared(row, first)
            waiting = [trial for trial in shared if not self.is_over(trial)]
            for index in range(len(shared), self.c.trials if space_of(row, self.c) else 0):
                if not waiting:
                    trial = self.further(row, first, index)
                    waiting = [] if self.is_over(trial) else [trial]
            todo += waiting
        return todo

    def collect(self) -> None:
        """Puts the trials into the store that were trained elsewhere, as far as they follow from others."""
        later = [row for row in self.c.rows if uses_first(row)]
        self.to_do([row for row in self.c.rows if row not in later])
        if later and not self.to_do(self.c.rows[:1]):
            self.to_do(later, self.best_of_first())

    def train(self, rows: list[str], first: Run | None = None) -> None:
        """All trials of these rows. TrainingsStopped at a signal; ChildProcessError at the first that fails:
        a trial that diverged is over, too, and any other failure would be the next one's as well."""
        while todo := self.to_do(rows, first):
            train_all(todo, self.c.jobs, lambda trial, code: self.is_over(trial), go_on=False)

    def run(self) -> None:
        """All trials; the first row's before those of the rows that start from its best one."""
        later = [row for row in self.c.rows if uses_first(row)]
        if later:
            self.train(self.c.rows[:1])
        self.train([row for row in self.c.rows if row not in later])
        if later:
            first = self.best_of_first()
            if self.to_do(later, first):
                train_all([first])  # whose folder they need, if it is not there any more
            self.train(later, first)

    def best_of_first(self) -> Trial:
        """The first row's best trial. UserError if it has none."""
        row = self.c.rows[0]
        best = best_of(self.trials(row))
        if best is None:
            raise UserError(
                f"all trials of {words_of(row)[0]} diverged, and others start from the best of them"
            )
        return self.trial(row, None, best["trial"], best["point"])

    def commands(self) -> None:
        """Prints a line for each trial that is still to do and that can be started now."""
        later = [row for row in self.c.rows if uses_first(row)]
        todo, first = self.to_do([row for row in self.c.rows if row not in later]), []
        lead = [t for t in todo if t.row == words_of(self.c.rows[0])[0]]
        if later and lead:
            names = ", ".join(words_of(row)[0] for row in later)
            print(
                f"# waiting for the best trial of {lead[0].row}: {names}; "
                f"once its {self.c.trials} trials are finished, --commands says theirs",
                file=sys.stderr,
            )
        elif later:
            best = self.best_of_first()
            waiting = self.to_do(later, best)
            first = [best] if waiting and not best.finished else []
            todo += waiting
        show_commands(first, todo)
        if any(t.index < self.c.trials - 1 for t in todo):
            print(
                "# once these are finished, --commands says the trials that follow from them", file=sys.stderr
            )


def check_space(space: Space) -> None:
    """UserError naming what is no float of train.py, or entry of a dict of it."""
    defaults = vars(TrainConfig())
    for key in space:
        name, _, entry = key.partition(".")
        if not isinstance(defaults.get(name), dict if entry else float):
            raise UserError(f"space: {key!r} is no setting of train.py that is a float")
