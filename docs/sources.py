"""The numbers of README.md and docs/: what a template asks of results/*.jsonl and bench/*.json.

A template names rows and a key, as in {{ rows("orders", "orders").sigma_gpt.ppl }}. What it gets has a number
of each seed. It prints as mean ± half of the 95% interval, and its `span` as lowest to highest.
"""

import json
import math
import operator
import statistics
from collections.abc import Callable, Hashable, Iterable
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from config.defaults import TrainConfig
from evaluation.statistics import holm, student_interval
from labs.classes import measure as classes
from measures.decoding import Points, points_of
from measures.find import find_measure
from measures.frontier import varied
from measures.search import best_of, best_so_far, losses, search_error, trials_of
from measures.store import Store
from measures.text import summary_of
from model import GPTConfig
from runtime.configurator import read_config
from runtime.profile import PEAK_FLOPS, flops_per_token

ROOT = Path(__file__).resolve().parents[1]
Entry = dict[str, Any]


class Span(list[float]):
    """Numbers that print as lowest to highest, or once if both print the same."""

    def __format__(self, spec: str) -> str:
        low, high = format(min(self), spec), format(max(self), spec)
        return low if low == high else f"{low} to {high}"


class Values(list[float]):
    """A number of each row. Arithmetic between two of them pairs the rows of the same seed."""

    def __init__(self, values: Iterable[float], seeds: Iterable[Hashable] = (), half: float | None = None):
        super().__init__(values)
        self.seeds = list(seeds) or list(range(len(self)))
        self._half = half

    @property
    def mean(self) -> float:
        return statistics.fmean(self)

    @property
    def half(self) -> float:
        """Half of the mean's 95% interval, by Student's t over the seeds; nan of one seed."""
        return student_interval(list(self)) if self._half is None else self._half

    @property
    def span(self) -> Span:
        return Span(self)

    @property
    def lowest(self) -> "Values":
        """The lowest of each seed."""
        return self._of_each_seed(min)

    @property
    def last(self) -> "Values":
        """The last of each seed."""
        return self._of_each_seed(lambda values: values[-1])

    def _of_each_seed(self, choose: Callable[[list[float]], float]) -> "Values":
        seeds = list(dict.fromkeys(self.seeds))
        return Values([choose([v for v, s in zip(self, self.seeds) if s == seed]) for seed in seeds], seeds)

    def _with(self, other: Any, f: Callable[[float, float], float]) -> "Values":
        if not isinstance(other, Values):
            return Values([f(value, other) for value in self], self.seeds)
        of_seed = dict(zip(other.seeds, other))
        return Values([f(value, of_seed[seed]) for value, seed in zip(self, self.seeds)], self.seeds)

    def __truediv__(self, other: Any) -> "Values":
        return self._with(other, operator.truediv)

    def __sub__(self, other: Any) -> "Values":
        return self._with(other, operator.sub)

    def __rsub__(self, other: float) -> "Values":
        return self._with(other, lambda value, one: one - value)

    def __mul__(self, other: Any) -> "Values":
        return self._with(other, operator.mul)

    def __format__(self, spec: str) -> str:
        mean = format(self.mean, spec)
        return f"{mean} ± {format(self.half, spec.lstrip('+'))}" if math.isfinite(self.half) else mean


LABELS = ("row", "name", "sampler", "step", "part")


class Rows:
    """Lines of a store, or parts of them, such as the evaluations during each training.

    .KEY      a number of each line, as Values; of a key whose values are lists or dicts their items, as Rows
    [LABEL]   the lines whose row, name, sampler, step or part is LABEL; .LABEL as well
    """

    def __init__(self, entries: Iterable[Entry]):
        self.entries = list(entries)

    def where(self, **fields: Any) -> "Rows":
        return Rows(e for e in self.entries if all(e.get(k) == v for k, v in fields.items()))

    def having(self, key: str) -> "Rows":
        return Rows(e for e in self.entries if key in e)

    @cached_property
    def models(self) -> dict[str, "Rows"]:
        """The lines of each row, without the references."""
        names = dict.fromkeys(e.get("row") or e["name"] for e in self.entries if not e.get("reference"))
        return {name: self[name] for name in names}

    def __getitem__(self, label: Any) -> "Rows":
        entries = [e for e in self.entries if any(e.get(key) == label for key in LABELS)]
        if not entries:
            raise KeyError(label)
        return Rows(entries)

    def __contains__(self, label: Any) -> bool:
        return any(e.get(key) == label for e in self.entries for key in LABELS)

    def __getattr__(self, key: str) -> Any:
        entries = [e for e in self.entries if e.get(key) is not None]
        if not entries and key in self:
            return self[key]
        if not entries:
            raise AttributeError(f"no line has {key}")
        value = entries[0][key]
        if isinstance(value, list | dict):
            return Rows(part for e in entries for part in parts(e, key))
        if isinstance(value, str):
            return value
        half = entries[0].get(f"{key}_ci") if len(entries) == 1 else None
        return Values([float(e[key]) for e in entries], [e.get("seed") for e in entries], half)


def parts(entry: Entry, key: str) -> Iterable[Entry]:
    """The items of a list, of a dict of dicts, or the dict itself; they keep the line's row and seed."""
    above = {k: entry[k] for k in ("row", "seed") if k in entry}
    value = entry[key]
    if isinstance(value, list):
        return [above | item for item in value]
    if not any(isinstance(item, dict) for item in value.values()):
        return [above | value]
    return [above | item | {"part": part} for part, item in value.items() if item]


@cache
def stored(name: str, measure: str) -> list[Entry]:
    """The lines of a measure in results/NAME.jsonl; none where it is not there."""
    return Store(ROOT / "results" / f"{name}.jsonl").rows(measure)


@cache
def record(name: str) -> Rows:
    """The scores of the entry records/NAME, a line a seed."""
    lines = (ROOT / "records" / name / "scores.jsonl").read_text(encoding="utf-8").splitlines()
    return Rows(json.loads(line) for line in lines)


@cache
def rows(name: str, measure: str = "text") -> Rows:
    return Rows(stored(name, measure))


def derived(e: Entry) -> Entry:
    """An evaluation on the known language, and what the pages compute from it."""
    if "alternatives_by_decade" not in e:
        return e
    # of the mass on valid words, the alternatives' part, over the part that is theirs
    share = e["mass_alternatives"] / (1 - e["mass_invalid"]) / (1 - e["true_observed"])
    # decade N: the mass on alternatives of true probability 1e-(N+1) to 1e-N, over the truth's
    due = {f"decade_{n}": m / p for n, (m, p) in enumerate(e["alternatives_by_decade"]) if p > 0}
    return e | {"share": share, "observed": e["mass_observed"] / e["true_observed"]} | due


@cache
def curves(name: str) -> Rows:
    """The evaluations during the trainings of a table: rows of results/NAME.curves.jsonl, or NAME.jsonl."""
    entries = stored(f"{name}.curves", "curve") or stored(name, "curve")
    return Rows(e | {"curve": [derived(point) for point in e["curve"]]} for e in entries)


@cache
def summary(name: str) -> Rows:
    """A table of text with the marks of the rows that cannot be told from the best."""
    return Rows(summary_of(stored(name, "text")))


@cache
def classified(name: str) -> Rows:
    """A table of classifiers, a line a row."""
    return Rows(classes.summary_of(stored(name, "classes")))


@cache
def ratios(name: str, key: str = "ppl_eps", below: str = "baseline") -> dict[str, Values]:
    """Each row's value over that of the row `below` of the same seed. The interval of a tuned row contains
    the errors of both searches."""
    base, out = getattr(rows(name)[below], key), {}
    trials = stored(name, "search")
    error = {
        row: search_error(losses(trials_of(trials, row))) for row in dict.fromkeys(t["row"] for t in trials)
    }
    for row, lines in rows(name).models.items():
        ratio = getattr(lines, key) / base
        searched = 1.96 * math.hypot(error.get(row, 0), error.get(below, 0)) * ratio.mean
        out[row] = Values(ratio, ratio.seeds, math.hypot(ratio.half, searched)) if row != below else ratio
    return out


@cache
def shared_ratios(name: str) -> dict[str, Span]:
    """Each row's validation perplexity over the baseline's, one seed, at each of the points that all rows of
    the search share."""
    design = stored(name, "search")[0]["settings"]["design"]
    base = search(name)["baseline"].ppl
    return {row: Span(x / y for x, y in zip(at.ppl[:design], base)) for row, at in search(name).items()}


def standing(name: str) -> SimpleNamespace:
    """The rows of a table that are `ahead` of its baseline by perplexity, those `behind`, and those that are
    `level`: the interval of their ratio holds 1. `holm`: those that are still ahead or behind after Holm's
    correction for all rows of the table, from p-values of a normal whose 95% interval is the ratio's."""
    each = {row: r for row, r in ratios(name).items() if row != "baseline"}
    ahead = [row for row, r in each.items() if r.mean + r.half < 1]
    behind = [row for row, r in each.items() if r.mean - r.half > 1]
    level = [row for row in each if row not in ahead + behind]
    z = {row: 1.96 * abs(r.mean - 1) / r.half for row, r in each.items()}
    kept = holm({row: math.erfc(z[row] / math.sqrt(2)) for row in z})
    surest_first = sorted(kept, key=z.__getitem__, reverse=True)  # p itself is 0 for several
    return SimpleNamespace(ahead=ahead, behind=behind, level=level, holm=surest_first)


@cache
def search(name: str) -> dict[str, Any]:
    """The search of results/NAME.jsonl: row -> its best point, the validation perplexity of its trials
    (`ppl`), what n trials buy (`bought`), and the mean over the shared points."""
    trials, out = stored(name, "search"), {}
    design = trials[0]["settings"]["design"]
    for row in dict.fromkeys(t["row"] for t in trials):
        of_row = trials_of(trials, row)
        best = best_of(of_row)
        assert best is not None
        ppl = [math.exp(t["nll"]) for t in of_row]
        bought = dict(enumerate(best_so_far(of_row, design), 1))
        numbers = {"trials": len(of_row), "bought": bought, "ppl": ppl}
        numbers["points"] = [t["point"] for t in of_row]
        numbers["error"] = search_error(losses(of_row))
        constant = {key: best["point"][key] for key in best["settings"].get("own_space", {})}
        numbers["constant"] = ", ".join(f"{k.rpartition('.')[2]} {v:.2g}" for k, v in constant.items()) or "-"
        out[row] = SimpleNamespace(**best["point"], **numbers)
    return out


FIT = 2.0  # nats a token on the train text, at which the heads of the table `memorise` are compared


def at_equal_fit(entries: list[Entry], key: str) -> float:
    """`key` of a run when its NLL of the train text falls to FIT: its logarithm interpolated between the
    evaluations before and after. nan if it never does."""
    for before, after in pairwise(entries):
        high, low = before["train_nll"], after["train_nll"]
        if high >= FIT > low:
            share = (high - FIT) / (high - low)
            logs = (math.log(max(1e-6, float(e[key]))) for e in (before, after))
            return math.exp(sum(w * v for w, v in zip((1 - share, share), logs)))
    return math.nan


def fits() -> dict[str, Span]:
    """KL(p, m) at equal fit of each row of the table `memorise`, nearest to the truth first."""
    each = {
        row: Span(at_equal_fit(e["curve"], "kl_truth_model") for e in lines.entries)
        for row, lines in curves("memorise").models.items()
    }
    return dict(sorted(each.items(), key=lambda item: statistics.fmean(item[1])))


class Decoded(Points):
    """A row of the decoding measure whose numbers are Values."""

    def values(self, *args: Any) -> Values:
        return Values(super().values(*args), self.seeds)

    def at_entropy(self, *args: Any) -> Values:
        """nan where a run cannot have this entropy."""
        return Values(super().at_entropy(*args) or [math.nan] * len(self.seeds), self.seeds)

    def texts(self, *args: Any) -> Values:
        return Values(super().texts(*args), self.seeds)

    def chosen(self, sampler: str, temperature: float = 1.0, key: str = "tv") -> Values:
        """A number at the sampler's best value."""
        return self.values(self.best(sampler, temperature), key)

    def with_value_of(self, other: "Decoded", sampler: str, temperature: float = 1.0) -> Values:
        """TV at the value that is best for another row."""
        return self.values(other.best(sampler, temperature))


@cache
def decoded(name: str) -> dict[str, Decoded]:
    """The rows of the decoding measure, the truth's last."""
    groups, truth = points_of(stored(name, "decoding"))
    return {row: Decoded(g.runs) for row, g in (groups | ({"truth": truth} if truth else {})).items()}


def frontier(name: str) -> SimpleNamespace:
    """A frontier of one row: `points`, (value, its numbers as Values) each, and `human`'s numbers."""
    rows = stored(name, "frontier")
    runs = [row for row in rows if "points" in row]
    over = varied(runs)
    points = [
        (each[0][over], SimpleNamespace(**{key: Values([p[key] for p in each]) for key in each[0]}))
        for each in zip(*(run["points"] for run in runs))
    ]
    human = next(row for row in rows if row.get("reference"))
    return SimpleNamespace(points=points, human=SimpleNamespace(**human), over=over, runs=len(runs))


def dearest(name: str, sampler: str, temperature: float) -> tuple[str, Values]:
    """The row that softmax's best value of a sampler costs most, and that cost in TV."""
    softmax = decoded(name)["baseline"]
    costs = {
        row: g.with_value_of(softmax, sampler, temperature) - g.chosen(sampler, temperature)
        for row, g in decoded(name).items()
        if row not in ("baseline", "truth")
    }
    return max(costs.items(), key=lambda item: item[1].mean)


def verdict(difference: Values, below: str, above: str) -> str:
    """What the interval of a difference says of its sign."""
    if not math.isfinite(difference.half) or abs(difference.mean) <= difference.half:
        return "cannot be told"
    return below if difference.mean < 0 else above


def told(difference: Values, below: str, above: str) -> str:
    """Two cells of a table: the difference and its verdict; "-" where it has none."""
    if math.isnan(difference.mean):
        return "- | -"
    return f"{difference:+.4f} | {verdict(difference, below, above)}"


def written(name: str, measure: str) -> str:
    """The tables of results/NAME.jsonl as they stand there, without what stands under them."""
    view = find_measure(measure).view
    paragraphs = view(stored(name, measure)).markdown.strip().split("\n\n")
    return "\n\n".join(part for part in paragraphs if part[:1] == "|")


@cache
def bench(name: str) -> Any:
    """bench/NAME.json; a list of `results` as Rows. None where it is not there."""
    path = ROOT / "bench" / f"{name}.json"
    if not path.is_file():
        return None
    content = json.loads(path.read_text(encoding="utf-8"))
    listed = isinstance(content.get("results"), list)
    return content | {"results": Rows(content["results"])} if listed else content


def configured(row: str) -> Entry:
    return read_config(ROOT / "config" / f"{row}.py")


def full_size() -> dict[str, Any]:
    """What the published size computes, from the defaults of training: no measurement."""
    c = TrainConfig()
    model = GPTConfig(50257, c.block_size, c.n_layer, c.n_head, c.n_embd, c.dropout)
    tokens = c.batch_size * c.block_size * c.max_steps
    return {"tokens": tokens, "per_token": flops_per_token(model), "flops": tokens * flops_per_token(model)}


def hours(gpu: str, mfu: float) -> float:
    """FLOPs of a row of the published size over an assumed share of a data sheet's peak."""
    return full_size()["flops"] / (mfu * PEAK_FLOPS[gpu]) / 3600
