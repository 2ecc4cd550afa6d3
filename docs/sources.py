"""The numbers of README.md and docs/: what a template may name between {{ and }}.

A name is a field of Python's format strings, as {{heads[baseline].ppl_eps:.1f}}.
A mean with an interval prints as mean ± half of it, a value of several seeds as lowest to highest.
"""

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from config.defaults import TrainConfig
from evaluation.intervals import student_interval
from labs.classes import measure as classes
from measures.search import best_of, best_so_far, trials_of
from measures.store import Store
from measures.text import summary_of
from model import GPTConfig
from runtime.configurator import read_config
from runtime.profile import PEAK_FLOPS, flops_per_token

ROOT = Path(__file__).resolve().parents[1]
Entry = dict[str, Any]


class Interval(NamedTuple):
    """A mean and half of its 95% interval."""

    mean: float
    half: float

    def __format__(self, spec: str) -> str:
        mean = format(self.mean, spec)
        return f"{mean} ± {format(self.half, spec.lstrip('+'))}" if math.isfinite(self.half) else mean


class Span(list[float]):
    """A value of each seed; printed as lowest to highest, or once if both print the same."""

    @property
    def mean(self) -> float:
        return statistics.fmean(self)

    def __format__(self, spec: str) -> str:
        low, high = format(min(self), spec), format(max(self), spec)
        return low if low == high else f"{low} to {high}"


class Row:
    """A row of a table: row.KEY is the number, or an Interval where the row has KEY_ci."""

    def __init__(self, entry: Entry):
        self.entry = entry

    def __getattr__(self, key: str) -> float | Interval:
        value = float(self.entry[key])
        return Interval(value, float(self.entry[key + "_ci"])) if key + "_ci" in self.entry else value


class Differences:
    """A row's differences to the table's first row, paired by seed: .KEY is an Interval."""

    def __init__(self, row: Row):
        self.row = row

    def __getattr__(self, key: str) -> Interval:
        e = self.row.entry
        return Interval(float(e[key + "_diff"]), float(e[key + "_diff_ci"]))


def read(name: str) -> Any:
    return json.loads((ROOT / name).read_text(encoding="utf-8"))


def stored(name: str, measure: str) -> list[Entry]:
    """The rows of a measure in results/NAME.jsonl; none where it is not there."""
    return Store(ROOT / "results" / f"{name}.jsonl").rows(measure)


def rows(name: str) -> dict[str, Row]:
    """The lines of a table of text: the mean over the seeds of each row, and the references."""
    return {r["name"]: Row(r) for r in summary_of(stored(name, "text"))}


def single_rows(name: str) -> dict[str, Row]:
    """The rows of a table that has a line a run."""
    return {r["name"]: Row(r) for r in stored(name, "text")}


def by_seed(found: Iterable[Entry]) -> dict[str, dict[int, Entry]]:
    """row -> seed -> the run's row."""
    out: dict[str, dict[int, Entry]] = defaultdict(dict)
    for r in found:
        if not r.get("reference"):
            out[r["row"]][r["seed"]] = r
    return out


def by_row(found: Iterable[Entry]) -> dict[str, list[Entry]]:
    """row -> the rows of its runs; a reference is a row of its own."""
    out = defaultdict[str, list[Entry]](list)
    for r in found:
        out[r["row"] if "row" in r else r["name"]].append(r)
    return out


def runs(name: str) -> dict[str, dict[int, Entry]]:
    """row -> seed -> the run, of a table of text."""
    return by_seed(stored(name, "text"))


def curves(name: str) -> dict[str, dict[int, list[Entry]]]:
    """row -> seed -> the evaluations during its training, of results/NAME.curves.jsonl."""
    of = by_seed(stored(f"{name}.curves", "curve"))
    return {row: {seed: r["curve"] for seed, r in seeds.items()} for row, seeds in of.items()}


def interval(values: Iterable[float]) -> Interval:
    """Student's t over the seeds."""
    values = list(values)
    return Interval(statistics.fmean(values), student_interval(values))


def ratios(of: dict[str, dict[int, Entry]], key: str) -> dict[str, Interval]:
    """Each row's value over the baseline's of the same seed."""
    base = of["baseline"]
    return {
        row: interval(float(r[key]) / float(base[seed][key]) for seed, r in seeds.items())
        for row, seeds in of.items()
    }


def image_ratios(name: str) -> dict[str, Any]:
    """row -> .bits and .fd[GUIDANCE]: over the baseline's of the same seed, of a table of images."""
    of: dict[str, dict[int, Entry]] = defaultdict(dict)
    for row, seeds in by_seed(stored(name, "images")).items():
        for seed, r in seeds.items():
            distances = {f"fd_{p['cfg']:g}": p["fd"] for p in r["points"]}
            of[row][seed] = {"bits": r["bits_code"], **distances}
    keys = list(next(iter(of["baseline"].values())))
    found = {key: ratios(of, key) for key in keys}
    return {
        row: SimpleNamespace(
            bits=found["bits"][row], fd={int(k[3:]): found[k][row] for k in keys if k != "bits"}
        )
        for row in of
    }


class Runs:
    """Runs of a row under the measures orders or images: .KEY is an Interval, .by[SAMPLER] what a sampler of
    theirs writes, .at[TEMPERATURE] what is drawn there; .each.KEY is a Span."""

    def __init__(self, entries: list[Entry]):
        self.entries = entries

    def __getattr__(self, key: str) -> Interval:
        return interval(float(e[key]) for e in self.entries)

    @property
    def by(self) -> dict[str, "Runs"]:
        each = zip(*(e["samplers"] for e in self.entries))
        return {same[0]["sampler"]: Runs(list(same)) for same in each}

    @property
    def each(self) -> SimpleNamespace:
        numbers = {k: v for k, v in self.entries[0].items() if isinstance(v, int | float)}
        return SimpleNamespace(**{k: Span(float(e[k]) for e in self.entries) for k in numbers})

    @property
    def at(self) -> dict[str, "Runs"]:
        each = zip(*(e["points"] for e in self.entries))
        return {f"{same[0]['temperature']:g}": Runs(list(same)) for same in each}


def measured(name: str, measure: str = "orders") -> dict[str, Runs]:
    """row -> its runs under a measure, of results/NAME.jsonl; none where it is not there."""
    found = [r for r in stored(name, measure) if not r.get("reference")]
    return {row: Runs(entries) for row, entries in by_row(found).items()}


def truth_nll(name: str) -> float:
    """Nats a sequence of what is not given that the exact truth needs on the split of a table of orders."""
    return float(next(r["judgements"]["nll"] for r in stored(name, "orders") if r.get("reference")))


def above_truth(name: str) -> dict[str, Interval]:
    """row -> how far its nll from left to right is above the truth's, of a table of orders."""
    least = truth_nll(name)
    of = {
        row: [e["nll"] - least for e in found.entries if "nll" in e] for row, found in measured(name).items()
    }
    return {row: interval(values) for row, values in of.items() if values}


def rest_of_climbs(name: str) -> dict[str, dict[str, dict[str, Interval]]]:
    """row -> what is known, in one word -> column, of a table of docs/climbs.py."""
    words = {"the first rate": "first", "10%": "tenth", "50%": "half", "10% and a later place": "later"}
    out: dict[str, dict[str, dict[str, Interval]]] = defaultdict(dict)
    for row, entries in by_row(stored(name, "rest")).items():
        for part, word in words.items():
            found = [e["parts"][part] for e in entries]
            if found[0]:  # a model from left to right cannot be told of a later place
                out[row][word] = {c: interval(float(f[c]) for f in found) for c in found[0]}
    return out


# What a template may ask of an evaluation in the log of a run, beside its own keys
DERIVED: dict[str, Callable[[Entry], float]] = {
    # of the mass on valid words, the alternatives' part, over the part that is theirs
    "share": lambda e: e["mass_alternatives"] / (1 - e["mass_invalid"]) / (1 - e["true_observed"]),
    "observed": lambda e: e["mass_observed"] / e["true_observed"],
}


class Evaluation:
    """An evaluation during training, of all seeds: .KEY and .decade[N] are Spans."""

    def __init__(self, entries: list[Entry]):
        self.entries = entries

    def __getattr__(self, key: str) -> Span:
        return Span(DERIVED[key](e) if key in DERIVED else float(e[key]) for e in self.entries)

    @property
    def decade(self) -> list[Span]:
        """decade[N]: the mass on alternatives of true probability 1e-(N+1) to 1e-N, over the truth's."""
        by_seed = [e["alternatives_by_decade"] for e in self.entries]
        shown = range(sum(p > 0 for _, p in by_seed[0]))
        return [Span(seed[d][0] / seed[d][1] for seed in by_seed) for d in shown]


def course(name: str) -> dict[str, dict[int, Evaluation]]:
    """row -> step -> the evaluation there, of the table's learning curves."""
    out: dict[str, dict[int, Evaluation]] = {}
    for row, seeds in curves(name).items():
        at: dict[int, list[Entry]] = defaultdict(list)
        for evaluations in seeds.values():
            for e in evaluations:
                at[e["step"]].append(e)
        out[row] = {step: Evaluation(entries) for step, entries in at.items()}
    return out


def later_ratio(of: Callable[[list[float]], float]) -> Span:
    """AM-softmax's validation perplexity over softmax's, `of` the evaluations of each run of 4,000 steps."""
    found = curves("heads_4000")
    ppl = {
        row: {seed: of([float(e["val_ppl_eps"]) for e in curve]) for seed, curve in found[row].items()}
        for row in ("am_softmax", "baseline")
    }
    return Span(ppl["am_softmax"][seed] / softmax for seed, softmax in ppl["baseline"].items())


def single_runs() -> dict[str, Any]:
    """The runs that no table holds, by name: their rows, `val_ppl` by step, and its lowest as `best`."""
    out = {}
    for r in stored("single_runs", "curve"):
        run = SimpleNamespace(**{"gain": None, "kl": None, **r})
        run.val_ppl = {e["step"]: e["val_ppl"] for e in r["curve"]}
        run.best = min(run.val_ppl.values())
        out[r["name"]] = run
    return out


def seeds_of(single: dict[str, Any], row: str) -> Span:
    """The best validation perplexities of a row of single runs, a seed each."""
    return Span(run.best for run in single.values() if run.row == row)


def search(name: str) -> dict[str, Any]:
    """The search of results/NAME.jsonl: row -> its best point, the validation perplexity that n trials buy,
    and its mean over the shared points."""
    trials, out = stored(name, "search"), {}
    design = trials[0]["settings"]["design"]
    for row in by_row(trials):
        of_row = trials_of(trials, row, len(trials))
        best = best_of(of_row)
        assert best is not None
        bought = dict(enumerate(best_so_far(of_row, design), 1))
        ppl = [math.exp(t["nll"]) for t in of_row]
        shared = statistics.fmean(ppl[:design])
        out[row] = SimpleNamespace(
            **best["point"], trials=len(of_row), bought=bought, ppl=ppl, shared_mean=shared
        )
    return out


def optimizer_steps() -> dict[str, float]:
    """Milliseconds of bench/optimizer.py: Muon's step in float32 on a CPU without bfloat16, torch's there,
    and Muon's and AdamW's with bfloat16."""

    def ms(file: str, dtype: str, program: str) -> float:
        results = read(f"bench/{file}")["results"]
        return next(
            1000 * r["seconds"]
            for r in results
            if (r["dtype"], r["program"].split(",")[0]) == (dtype, program)
        )

    return {
        "avx2_ms": ms("avx2/optimizer.json", "float32", "muon"),
        "avx2_torch_ms": ms("avx2/optimizer.json", "float32", "torch.optim.Muon"),
        "bf16_ms": ms("optimizer.json", "bfloat16", "muon"),
        "adamw_ms": ms("optimizer.json", "bfloat16", "adamw"),
    }


# -----------------------------------------------------------------------------
# The 124M rows, estimated: FLOPs over an assumed share of a data sheet's peak


def full_size() -> dict[str, Any]:
    """What the published size computes, from the defaults of training: no measurement."""
    c = TrainConfig()
    model = GPTConfig(50257, c.block_size, c.n_layer, c.n_head, c.n_embd, c.dropout)
    tokens = c.batch_size * c.block_size * c.max_steps
    return {"tokens": tokens, "per_token": flops_per_token(model), "flops": tokens * flops_per_token(model)}


def hours(gpu: str, mfu: float) -> float:
    return full_size()["flops"] / (mfu * PEAK_FLOPS[gpu]) / 3600


def configured(row: str) -> Entry:
    return read_config(ROOT / "config" / f"{row}.py")


CLASSIFIED = ("mnist", "cifar10", "cifar100", "mnist_brief", "mnist_brief_tuned")  # tables of classifiers


def classified() -> dict[str, dict[str, Row]]:
    """The lines of these tables; none of one that results/ does not have."""
    found = {name: stored(name, "classes") for name in CLASSIFIED}
    return {
        name: {r["name"]: Row(r) for r in (classes.summary_of(runs) if runs else [])}
        for name, runs in found.items()
    }


# steps of training on mazes -> the table. 32 sequences a step, of 100,000
MAZES = {5000: "mazes_small", 20_000: "mazes_small_20000"}

# tables of tuned heads -> what was trained. The last three are at the points of `heads`
BUDGETS = {
    "heads_250": "250 steps",
    "heads": "1,000",
    "heads_4000": "4,000",
    "heads_once": "5,600, novels once",
    "heads_larger": "1,000, 4.2M parameters",
}


def numbers() -> dict[str, Any]:
    """All that a template may name, but for the blocks of build.py."""
    single = single_runs()
    return {
        **{name: rows(name) for name in ("heads", "grammar")},
        **{name: single_rows(name) for name in ("small", "labels")},
        "paper": single_rows("paper_protocol"),
        "course": course("grammar"),
        "single": single,
        "seeds": {name: seeds_of(single, name) for name in ("softmax", "gain 4")},
        "heads_250": rows("heads_250"),
        "muon_250": rows("muon_250"),
        "muon_ratio": ratios(runs("muon_250"), "ppl_eps"),
        "search": {name: search(name) for name in ("heads_250", "heads", "muon_250", "grammar")},
        "tuned_ratio": ratios(runs("heads_250"), "ppl_eps"),
        "ratio_1000": ratios(runs("heads"), "ppl_eps"),
        "ratio_at": {name: ratios(runs(name), "ppl_eps") for name in BUDGETS},
        **{name: rows(name) for name in ("heads_4000", "heads_once", "heads_larger")},
        "memorised": curves("memorise"),
        "learnt": course("memorise"),
        "later": course("heads_4000"),
        "once": course("heads_once"),
        "am_at_best": later_ratio(min),
        "am_at_end": later_ratio(lambda curve: curve[-1]),
        "larger": course("heads_larger"),
        "classified": classified(),
        "image_ratio": image_ratios("images"),
        "ablation": measured("images_ablation", "images"),
        "bench": {**read("bench/notes.json"), "muon": optimizer_steps()},
        "orders": measured("orders_grammar"),
        "wikitext": measured("orders"),
        "step": measured("synthetic_step"),
        "climbs": measured("climbs"),
        "mazes": measured("mazes_small"),
        "mazes_at": {steps: measured(name) for steps, name in MAZES.items()},
        "masked_behind": Span(measured("mazes_small")["masked_diffusion"].each.nll_own[1:]),
        "truth_nll": {name: truth_nll(name) for name in ("mazes_small", "climbs")},
        "above_truth": {name: above_truth(name) for name in ("climbs", *MAZES.values())},
        "rest": rest_of_climbs("climbs.rest"),
        "recorded": measured("climbs_real"),
        "recorded_rest": rest_of_climbs("climbs_real.rest"),
        "walk": stored("synthetic_walk.walk", "walk")[0],
        "sigma_gpt": read("bench/sigma_gpt.json")["results"],
        "full": full_size(),
    }
