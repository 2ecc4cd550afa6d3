"""How well models know a text in any order: checkpoints -> perplexity by order, and of held-out middles.

Where the exact truth is known, also the distance to it given both sides.

    python eval_orders.py out/baseline-small-1 out/sigma_gpt-small-1 --out results/orders
    python eval_orders.py out/orders/*-orders-* --samplers --out results/orders_grammar

ppl          from left to right, each token given one at least: what eval_diversity.py scores. Not of
             synthetic sequences, which stand apart from each other
ppl random   in a random order, whole windows from the start token; of masked diffusion a bound
ppl own      in the order that it was trained in
bits, left   a token of the middle 1, 4, 16, 64 of a window, given what stands to the left
bits, both   given both sides. Of masked diffusion a bound
KL           KL(truth || model) in nats of the place after the first 10, 50, 90% of a window (next), of places
             in a gap with 10, 50, 90% around it (middle), and with as many known anywhere (random)

Of sequences that begin with tokens which are given all of this is of the rest, and there is nll
(ltr, random, own), nats a sequence, instead of perplexities.

Rows are means over the runs of one configuration, with 95% intervals by Student's t over their seeds.
`--samplers`: what each sampler writes from nothing, or from what is given, against the truth, and the model
evaluations it takes.
"""

from dataclasses import dataclass, field
from typing import Literal

from runtime.configurator import check_seed
from runtime.door import Program
from runtime.errors import UserError


@dataclass
class OrdersConfig:
    # fmt: off
    checkpoints: list[str]          # [NAME=]RUN ...: out folders of training runs, or checkpoints in them
    split: Literal["validation", "test"] = "validation"
    data: str = ""                  # the prepared data folder; empty: the one of the first run
    windows: int = 512              # of which middles are asked
    gaps: list[int] = field(default_factory=list)  # tokens of a middle; empty: 1, 4, 16, 64 as they fit
    truth_windows: int = 256        # in which a distribution is compared with the truth
    known: list[float] = field(default_factory=lambda: [0.1, 0.5, 0.9])  # shares of a window
    samplers: bool = False          # also what each sampler writes; for a corpus whose truth is known
    texts: int = 500                # of each sampler
    samples: int = 8                # weight draws of Bayesian rows
    seed: int = 1337                # of what is sampled
    device: str = "auto"            # auto, cpu, cuda, cuda:N or mps
    dtype: str = "float32"          # of matrix products: float32, bfloat16, float16, or auto
    out: str = ""                   # writes OUT.md, OUT.json and, of samplers, OUT.samplers.png and .svg
    #                                 rows of other runs, and of unchanged ones, in it are kept
    # fmt: on

    def check(self) -> None:
        """UserError naming the value that cannot work."""
        for key in ("windows", "truth_windows", "texts", "samples"):
            if getattr(self, key) < 1:
                raise UserError(f"{key} = {getattr(self, key)}: must be at least 1")
        if min(self.gaps, default=1) < 1:
            raise UserError(f"gaps = {self.gaps}: each must be at least 1 token")
        if not all(0 < share < 1 for share in self.known):
            raise UserError(f"known = {self.known}: each share must lie between 0 and 1")
        check_seed(self.seed)


program = Program(__name__, __doc__, OrdersConfig, "scipy", "tabulate")

import itertools
import statistics
import sys
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from data.held_out import HeldOut, open_held_out
from data.prepared import found_path, given_of
from evaluation import figures
from evaluation.by_seed import grouped, kept_rows, mean, problems, rows_of, table, update
from evaluation.metrics import perplexity
from evaluation.orders import KINDS, Asker, Questions, divergence, middle_bits, questions, spread, templates
from evaluation.provenance import versions
from evaluation.rows import Entry, check_comparable, entries
from evaluation.samplers import points
from evaluation.sampling import weight_draws
from evaluation.scoring import score
from evaluation.settings import run_seed
from evaluation.tables import Row, beside, exit_code, scored_otherwise
from evaluation.two_sided import Answers, Sequences, TwoSided, is_known, two_sided
from runtime.checkpoint import load_model
from runtime.configurator import cli
from runtime.device import get_device, get_dtype, settle_dtype
from runtime.files import check_writable, lock_of, locked

PROGRAM = "eval_orders.py"
CODE = (  # what decides the numbers of a row, beside what decides those of eval_diversity.py
    *(f"evaluation/{name}.py" for name in ("orders", "any_order", "filling", "samplers", "two_sided")),
    "data/orders.py",
    "data/grammar/two_sided.py",
    "data/synthetic/tasks.py",
    "data/climbs/simulated.py",
    "data/climbs/rates.py",
    "data/mazes/mazes.py",
)


def perplexities(who: Asker, own: str, data: HeldOut, title: str, apart: bool) -> dict[str, float]:
    """In all orders; of sequences that begin with what is given, nats a sequence. `apart`: windows are
    sequences that have nothing to do with each other."""
    kind, given = "nll" if data.given else "ppl", data.given

    def of(order: str) -> float:
        def bar(batches: Any) -> Any:
            return tqdm(batches, desc=f"{title}: {order or 'left to right'}", leave=False)

        what = (who.model, data.ids, 0, who.draws, who.device, who.dtype)
        s = score(*what, progress=bar, order=order, given=given)
        if given:
            return s.nll / s.tokens * (who.model.trunk.config.block_size - given)
        return perplexity(s.nll, s.tokens)

    if own == "masked":
        bound = of("masked")
        return {f"{kind}_random": bound, f"{kind}_own": bound}
    found = {} if apart and not given else {kind: of("")}
    if own == "left_to_right":
        return found
    random = of("random")
    return found | {f"{kind}_random": random, f"{kind}_own": random if own == "random" else of(own)}


def run_row(c: OrdersConfig, entry: Entry, a: "Asked", truths: dict[tuple[str, float], Questions]) -> Row:
    """All that is measured of one run."""
    device = get_device(c.device)
    model, ckpt = load_model(entry.path, device=device, dtype=get_dtype(c.dtype))
    who = Asker(model, weight_draws(model, ckpt.config, c.samples, c.seed, c.dtype), device, c.dtype)
    own = ckpt.config.get("order", "left_to_right")
    row: Row = perplexities(who, own, a.data, entry.name, isinstance(a.truth, Sequences))
    windows = spread(a.data.ids, c.windows, a.length)
    for gap in c.gaps:
        for side, bits in middle_bits(who, windows, gap, a.data.given).items():
            row[f"{side}_{gap}"] = bits
    for (kind, share), q in truths.items():
        if kind == "next" or who.order != "left_to_right":
            row[f"kl_{kind}_{share:.0%}"] = divergence(who, q)["kl"]
    if c.samplers and a.truth and (who.order != "left_to_right" or a.data.given):
        begun = templates(spread(a.data.ids, c.texts, a.length), a.data.given)
        row["samplers"] = points(who, a.truth, begun, run_seed(c.seed, ckpt.config))
    return row


def settings_of(c: OrdersConfig) -> dict[str, Any]:
    """What two rows must share to stand in one table, as far as it is settled already."""
    unsettled = {k for k in ("gaps", "dtype") if getattr(c, k) in ([], "auto")}
    ignored = {"checkpoints", "data", "device", "out"} | unsettled
    return {k: v for k, v in vars(c).items() if k not in ignored}


def truth_of(a: "Asked", texts: int) -> dict[str, float]:
    """What the truth has itself: the judgement of real `texts`, and of sequences that begin with what is
    given its `nll` over the whole split. No order changes that, and no model has less on average."""
    assert a.truth
    found = a.truth.judge(spread(a.data.ids, texts, a.length))
    if a.data.given and isinstance(a.truth, Sequences | Answers):
        whole = spread(a.data.ids, len(a.data.ids), a.length)
        found["nll"] = float(a.truth.nats(whole).mean())
    return found


def tables(rows: list[Row], truth: dict[str, float]) -> list[str]:
    """Perplexities and middles, then the distances to the truth: a line for each configuration, and one for
    the truth's own nll."""
    keys = list(dict.fromkeys(k for r in rows for k, v in r.items() if isinstance(v, float)))
    out = []
    for own in ([k for k in keys if not k.startswith("kl_")], [k for k in keys if k.startswith("kl_")]):
        lines = [
            [name, str(len(runs)), *(mean([r[k] for r in runs if k in r]) for k in own)]
            for name, runs in grouped(rows).items()
        ]
        if "nll" in truth and any(k.startswith("nll") for k in own):
            lines.append(["truth", "", *(mean([truth["nll"]]) if k.startswith("nll") else "" for k in own)])
        if own:
            out.append(table(["", "runs", *(k.replace("_", " ") for k in own)], lines))
    return out


def judgements(truth: dict[str, float]) -> list[str]:
    """The columns that a truth has (TwoSided.judge)."""
    return [k for k in truth if k not in ("judged", "nll")]


def sampler_table(rows: list[Row], truth: dict[str, float]) -> str:
    judged, lines = judgements(truth), []
    keys = ["rounds", "evaluations", "tokens_a_pass", "ms_a_token", *judged, "judged"]
    for name, runs in grouped(rows).items():
        for same in zip(*(r["samplers"] for r in runs if "samplers" in r)):
            said = [p | {"ms_a_token": 1000 * p["seconds_a_token"]} for p in same]
            lines.append([name, same[0]["sampler"], *(mean([p[k] for p in said if k in p]) for k in keys)])
    lines.append(["truth", "", "", "", "", "", *(f"{truth[k]:.4g}" for k in (*judged, "judged"))])
    return table(["", "sampler", *(k.replace("_", " ") for k in keys)], lines)


# order of training -> the samplers that write in it, where not all do
OF_ORDER = {"left_to_right": ["left to right"], "conditional": ["left to right"], "fractal": []}


def in_own_order(row: Row) -> list[dict[str, Any]]:
    """What samplers write of a run in an order that it was trained in."""
    own = OF_ORDER.get(row.get("training", {}).get("order", ""))
    return [p for p in row.get("samplers", []) if own is None or p["sampler"] in own]


def draw(rows: list[Row], truth: dict[str, float], out: Path) -> list[Path]:
    """OUT.samplers.png and .svg: what samplers write against model evaluations a text, in orders that a row
    was trained in; a colour for each row, a marker for each sampler, grey: the truth's."""
    plt = figures.pyplot()
    keys = judgements(truth)
    having = {}
    for name, runs in grouped(rows).items():
        if found := [own for r in runs if (own := in_own_order(r))]:
            having[name] = found
    names = dict.fromkeys(p["sampler"] for found in having.values() for p in found[0])
    marker = dict(zip(names, itertools.cycle("osD^v<>PX*hd")))
    fig, axes = plt.subplots(1, len(keys), figsize=(4 * len(keys), 4), layout="constrained")
    for number, found in enumerate(having.values()):
        for same in zip(*found):
            x = statistics.fmean(p["evaluations"] for p in same)
            for ax, key in zip(axes, keys):
                values = [p[key] for p in same if key in p]
                if values:
                    ax.plot(x, statistics.fmean(values), marker[same[0]["sampler"]], color=f"C{number}")
    for ax, key in zip(axes, keys):
        ax.axhline(truth[key], color="0.6", lw=0.8)
        ax.set_xscale("log", base=4)
        ax.xaxis.set_major_formatter("{x:g}")  # its own are powers in TeX, which pyplot() turns off
        ax.minorticks_off()
        ax.set(xlabel="model evaluations a text", ylabel=key.replace("_", " "))
    shown = {name: ("o", f"C{i}") for i, name in enumerate(having)} | {n: (marker[n], "0.4") for n in names}
    keyed = [plt.Line2D([], [], marker=m, color=color, ls="") for m, color in shown.values()]
    fig.legend(keyed, list(shown), loc="outside lower center", ncols=5, frameon=False)
    return figures.write(fig, beside(out, ".samplers"))


class Asked(NamedTuple):
    """What all rows are measured on."""

    runs: list[Entry]
    data: HeldOut
    length: int  # of windows
    truth: TwoSided | None


def check_gaps(c: OrdersConfig, length: int) -> None:
    """`length`: of what is predicted of a window."""
    if max(c.gaps, default=0) > length - 2:
        raise UserError(f"gaps = {c.gaps}: these models read windows of {length} tokens; give shorter gaps")


def check_before(c: OrdersConfig, out: Path, wanted: list[dict[str, Any]]) -> dict[str, Row]:
    """For table.py, before the trainings: the rows that `out` has. UserError for what cannot be asked of runs
    of these configurations, and for rows of other settings."""
    for run in wanted:
        corpus = run["dataset"], run["source"]
        check_gaps(c, run["block_size"] - given_of(*corpus))
        if c.samplers and not is_known(*corpus, run["block_size"]):
            raise no_truth(" ".join(corpus).strip(), run["block_size"])
    return kept_rows(out, settings_of(c), PROGRAM)


def no_truth(corpus: str, length: int) -> UserError:
    return UserError(
        "--samplers needs a corpus whose truth is known (data/grammar, or whole sequences of data/synthetic, "
        f"data/mazes or simulated data/climbs), not {corpus} in windows of {length} tokens: leave it out"
    )


def opened(c: OrdersConfig) -> Asked:
    """UserError for all that cannot be measured, before any work."""
    runs = entries(c.checkpoints)
    check_comparable(runs, masked=True)
    folder = Path(c.data) if c.data else found_path(runs[0].ckpt.config["data"], runs[0].path)
    data = open_held_out(folder / f"{c.split}.bin")
    length = runs[0].ckpt.config["block_size"]
    check_gaps(c, length - data.given)
    c.gaps = c.gaps or [gap for gap in (1, 4, 16, 64) if gap <= length - data.given - 2]
    truth = two_sided(data, runs[0].ckpt.config["dataset"], length)
    if c.samplers and truth is None:
        raise no_truth(str(folder), length)
    if c.out:
        check_writable(beside(Path(c.out), ".json"))
    return Asked(runs, data, length, truth)


@program
def main(c: OrdersConfig) -> int:
    c.dtype = settle_dtype(c.dtype, get_device(c.device)).name
    a = opened(c)
    out = Path(c.out) if c.out else None
    settings = settings_of(c) | {"block_size": a.length, "corpus": a.data.info["sha256"]}
    kept = kept_rows(out, settings, PROGRAM)
    truths: dict[tuple[str, float], Questions] = {}
    if a.truth:
        windows = spread(a.data.ids, c.truth_windows, a.length)
        truths = {
            (k, share): questions(a.truth, windows, share, k, a.data.given)
            for k in KINDS
            for share in c.known
        }
    content: dict[str, Any] = {"settings": settings, "command": " ".join(sys.argv), "versions": versions()}
    if a.truth:
        content["truth"] = truth_of(a, c.texts)

    def text(rows: list[Row]) -> str:
        return "\n\n".join(texts_of(content, rows, c.samplers))

    def written(rows: dict[str, Row]) -> list[Row]:
        return update(out, content, rows, PROGRAM, text) if out else list(rows.values())

    rows = rows_of(a.runs, kept, CODE, lambda entry: run_row(c, entry, a, truths), written, out)
    print(text(rows))
    if out and c.samplers:
        with locked(lock_of(out)):  # who draws last has read all rows
            draw(list(kept_rows(out, settings, PROGRAM).values()), content["truth"], out)
    asked = {e.name for e in a.runs}
    return exit_code({r["name"]: r for r in rows if r["name"] in asked})


# a key, or how it begins -> what the columns under it are
EXPLAINED = {
    "ppl": "ppl, ppl random, ppl own: perplexity from left to right, each token given one at least; in random"
    " order from the start token; in the order of training. Of masked diffusion a bound.",
    "nll": "nll, nll random, nll own: nats a sequence of what is not given, from left to right, in random"
    " order, in the order of training. Of masked diffusion a bound. The truth's is of the whole split, in any"
    " order.",
    "left_": "left N, both N: bits a token of the middle N of a window, given what stands to the left;"
    " given both sides (of masked diffusion a bound).",
    "kl_": "kl: KL(truth || model) in nats at one place: after the first 10, 50, 90% of a window (next),"
    " in a gap with as much around it (middle), with as much known anywhere (random).",
    "samplers": "rounds, evaluations: a text's rounds of sampling, and the model evaluations in them, one"
    " for each order that is asked about; tokens a pass: of an evaluation; ms a token: milliseconds, 16 texts"
    " at a time.",
    "validity": "validity: the share that the truth can write, of the judged: whole sequences; of the known"
    " language the words up to a document's first forbidden one, where its start is in the window.",
    "pair_tv": "pair tv: total variation between how often two classes of words are neighbours there and in"
    " the language. What the truth writes has that of so many words.",
    "solved": "solved, optimal: the share of answers that are a path from start to goal; a shortest one.",
    "true_nll": "true nll: the mean -log p, under the truth, of what it can write: nats a token, or, where"
    " sequences begin with what is given, nats of the rest of a sequence.",
}


def note(rows: list[Row], truth: dict[str, float]) -> list[str]:
    """What stands under the tables, about the columns that they have."""
    keys = {k for r in rows for k in r} | (truth.keys() if any("samplers" in r for r in rows) else set())
    columns = [f"- {text}" for of, text in EXPLAINED.items() if any(k.startswith(of) for k in keys)]
    return ["Mean ± half of the 95% interval: Student's t over the runs.", "\n".join(columns)]


def texts_of(content: dict[str, Any], rows: list[Row], samplers: bool) -> list[str]:
    truth = content.get("truth", {})
    said = [*note(rows, truth), *problems(rows), *scored_otherwise(rows, CODE)]
    return [*tables(rows, truth), *([sampler_table(rows, truth)] if samplers else []), *said]


if __name__ == "__main__":
    cli(main)()
