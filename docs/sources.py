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
from evaluation.tuning import Store, best_of, best_so_far
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
    """A row of a table's JSON: row.KEY is the number, or an Interval where the row has KEY_ci."""

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


def rows(name: str) -> dict[str, Row]:
    """The rows of results/NAME.json by their names."""
    return {r["name"]: Row(r) for r in read(f"results/{name}.json")["rows"]}


def runs(name: str) -> dict[str, dict[int, Entry]]:
    """row -> seed -> the run, of results/NAME.runs.json."""
    out: dict[str, dict[int, Entry]] = defaultdict(dict)
    for r in read(f"results/{name}.runs.json")["rows"]:
        if not r.get("reference"):
            row, _, seed = r["name"].rsplit("-", 2)
            out[row][int(seed)] = r
    return out


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
    """row -> .bits and .fd[GUIDANCE]: over the baseline's of the same seed, of results/NAME.json."""
    of: dict[str, dict[int, Entry]] = defaultdict(dict)
    for r in read(f"results/{name}.json")["rows"]:
        distances = {f"fd_{p['cfg']:g}": p["fd"] for p in r["points"]}
        of[r["row"].rsplit("-", 1)[0]][r["seed"]] = {"bits": r["bits_code"], **distances}
    keys = list(next(iter(of["baseline"].values())))
    found = {key: ratios(of, key) for key in keys}
    return {
        row: SimpleNamespace(
            bits=found["bits"][row], fd={int(k[3:]): found[k][row] for k in keys if k != "bits"}
        )
        for row in of
    }


class Runs:
    """Runs of a row of eval_orders.py or eval_images.py: .KEY is an Interval, .by[SAMPLER] what a sampler of
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


def orders(name: str) -> dict[str, Runs]:
    """row -> its runs, of results/NAME.json; none where it is not there."""
    file, out = f"results/{name}.json", defaultdict[str, list[Entry]](list)
    for r in read(file)["rows"] if (ROOT / file).is_file() else []:
        out[r["row"].rsplit("-", 1)[0]].append(r)
    return {row: Runs(entries) for row, entries in out.items()}


def truth_nll(name: str) -> float:
    """Nats a sequence of what is not given that the exact truth needs on the split of results/NAME.json."""
    return float(read(f"results/{name}.json")["truth"]["nll"])


def above_truth(name: str) -> dict[str, Interval]:
    """row -> how far its nll from left to right is above the truth's, of results/NAME.json."""
    least = truth_nll(name)
    of = {row: [e["nll"] - least for e in found.entries if "nll" in e] for row, found in orders(name).items()}
    return {row: interval(values) for row, values in of.items() if values}


def rest_of_climbs(name: str) -> dict[str, dict[str, dict[str, Interval]]]:
    """row -> what is known, in one word -> column, of results/NAME.json of docs/climbs.py."""
    parts = {"the first rate": "first", "10%": "tenth", "50%": "half", "10% and a later place": "later"}
    of = defaultdict[str, list[Entry]](list)
    for r in read(f"results/{name}.json")["rows"]:
        of[r["row"].rsplit("-", 1)[0]].append(r)
    out: dict[str, dict[str, dict[str, Interval]]] = defaultdict(lambda: defaultdict(dict))
    for row, entries in of.items():
        for key in (k for k in entries[0] if k.partition(": ")[0] in parts):
            part, _, column = key.partition(": ")
            out[row][parts[part]][column] = interval(float(e[key]) for e in entries)
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


def course(of: dict[str, dict[int, Entry]]) -> dict[str, dict[int, Evaluation]]:
    """row -> step -> the evaluation there."""
    out: dict[str, dict[int, Evaluation]] = {}
    for row, seeds in of.items():
        at: dict[int, list[Entry]] = defaultdict(list)
        for r in seeds.values():
            for e in r["curve"]:
                at[e["step"]].append(e)
        out[row] = {step: Evaluation(entries) for step, entries in at.items()}
    return out


def later_ratio(of: Callable[[list[float]], float]) -> Span:
    """AM-softmax's validation perplexity over softmax's, `of` the evaluations of each run of 4,000 steps."""
    rows = runs("heads_4000")
    ppl = {
        row: {s: of([float(e["val_ppl_eps"]) for e in r["curve"]]) for s, r in rows[row].items()}
        for row in ("am_softmax", "baseline")
    }
    return Span(ppl["am_softmax"][seed] / softmax for seed, softmax in ppl["baseline"].items())


def single_runs() -> dict[str, Any]:
    """results/single_runs.json: id -> its run, and the best validation perplexity as `best`."""
    out = {}
    for r in read("results/single_runs.json")["runs"]:
        run = SimpleNamespace(**{"gain": None, "kl": None, **r})
        run.val_ppl = {int(step): ppl for step, ppl in r["val_ppl"].items()}
        run.best = min(run.val_ppl.values())
        out[r["id"]] = run
    return out


def seeds_of(single: dict[str, Any], of: str) -> Span:
    """The best validation perplexities of all runs called OF, a seed each."""
    return Span(run.best for name, run in single.items() if name.rsplit(", ", 1)[0] == of)


def trials(name: str) -> Store:
    return Store(ROOT / "results" / f"{name}.tune.json")


def search(name: str) -> dict[str, Any]:
    """results/NAME.tune.json: row -> its best point, the validation perplexity that n trials buy, and its
    mean over the shared points."""
    store, out = trials(name), {}
    design = read(f"results/{name}.tune.json")["settings"]["design"]
    for row in dict.fromkeys(row for row, _ in store.trials):
        of_row = store.of_row(row, len(store.trials))
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


# tables of classify_table.py
CLASSIFIED = ("mnist", "cifar10", "cifar100", "mnist_brief", "mnist_brief_tuned")


def classified() -> dict[str, dict[str, Row]]:
    """The rows of these tables; none of one that results/ does not have."""
    return {name: rows(name) if (ROOT / f"results/{name}.json").is_file() else {} for name in CLASSIFIED}


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
        **{name: rows(name) for name in ("heads", "grammar", "small", "labels")},
        "paper": rows("paper_protocol"),
        "course": course(runs("grammar")),
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
        "memorised": runs("memorise"),
        "learnt": course(runs("memorise")),
        "later": course(runs("heads_4000")),
        "once": course(runs("heads_once")),
        "am_at_best": later_ratio(min),
        "am_at_end": later_ratio(lambda curve: curve[-1]),
        "larger": course(runs("heads_larger")),
        "classified": classified(),
        "image_ratio": image_ratios("images"),
        "ablation": orders("images_ablation"),
        "bench": {**read("bench/notes.json"), "muon": optimizer_steps()},
        "orders": orders("orders_grammar"),
        "wikitext": orders("orders"),
        "step": orders("synthetic_step"),
        "climbs": orders("climbs"),
        "mazes": orders("mazes_small"),
        "mazes_at": {steps: orders(name) for steps, name in MAZES.items()},
        "masked_behind": Span(orders("mazes_small")["masked_diffusion"].each.nll_own[1:]),
        "truth_nll": {name: truth_nll(name) for name in ("mazes_small", "climbs")},
        "above_truth": {name: above_truth(name) for name in ("climbs", *MAZES.values())},
        "rest": rest_of_climbs("climbs.rest"),
        "recorded": orders("climbs_real"),
        "recorded_rest": rest_of_climbs("climbs_real.rest"),
        "walk": read("results/synthetic_walk.walk.json"),
        "sigma_gpt": read("bench/sigma_gpt.json")["results"],
        "full": full_size(),
    }
