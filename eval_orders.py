"""How well models know a text in any order: checkpoints -> perplexity by order, held-out middles, and where
the exact truth is known, the distance to it given both sides.

    python eval_orders.py out/baseline-small-1 out/sigma_gpt-small-1 --out results/orders
    python eval_orders.py out/orders/*-grammar-* --samplers --out results/orders_grammar

ppl          from left to right, each token given one at least: what eval_diversity.py scores
ppl random   in a random order, whole windows from the start token; of masked diffusion a bound
ppl own      in the order that it was trained in
bits, left   a token of the middle 1, 4, 16, 64 of a window, given what stands to the left
bits, both   given both sides. Of masked diffusion a bound
KL           KL(truth || model) in nats of the place after the first 10, 50, 90% of a window (next), of places
             in a gap with 10, 50, 90% around it (middle), and with as many known anywhere (random)

Rows are means over the runs of one configuration, with 95% intervals by Student's t over their seeds.
`--samplers`: what each sampler writes from nothing, against the truth, and the model evaluations it takes.
"""

if __name__ == "__main__":
    from runtime import configurator

    configurator.quiet_imports()

import statistics
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tabulate import tabulate
from tqdm import tqdm

from data.held_out import HeldOut, open_held_out
from data.prepared import found_path
from evaluation import figures
from evaluation.intervals import student_interval
from evaluation.metrics import perplexity
from evaluation.orders import KINDS, Asker, divergence, middle_bits, questions, spread
from evaluation.provenance import commit, scoring_code, versions
from evaluation.rows import Entry, check_comparable, entries, public
from evaluation.samplers import against_truth, points
from evaluation.scoring import score
from evaluation.tables import Row, beside, json_table, strict
from model import context
from runtime.checkpoint import load_model, weights_digest
from runtime.configurator import check_seed, cli, configure, help_text, wants_help
from runtime.device import get_device, get_dtype, settle_dtype
from runtime.errors import UserError
from runtime.files import check_writable, replacing


@dataclass
class OrdersConfig:
    # fmt: off
    checkpoints: list[str]          # [NAME=]RUN ...: out folders of training runs, or checkpoints in them
    split: Literal["validation", "test"] = "validation"
    data: str = ""                  # the prepared data folder; empty: the one of the first run
    windows: int = 256              # of which middles are asked
    gaps: list[int] = field(default_factory=list)  # tokens of a middle; empty: 1, 4, 16, 64 as they fit
    truth_windows: int = 64         # in which a distribution is compared with the truth
    known: list[float] = field(default_factory=lambda: [0.1, 0.5, 0.9])  # shares of a window
    samplers: bool = False          # also what each sampler writes; for a corpus whose truth is known
    texts: int = 64                 # of each sampler
    samples: int = 8                # weight draws of Bayesian rows
    seed: int = 1337                # of what is sampled
    device: str = "auto"            # auto, cpu, cuda, cuda:N or mps
    dtype: str = "float32"          # of matrix products: float32, bfloat16, float16, or auto
    out: str = ""                   # writes OUT.md, OUT.json and, of samplers, OUT.samplers.png and .svg
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


def name_of(entry: Entry) -> str:
    """The row of a run: its name without its seed."""
    return entry.name.removesuffix(f"-{entry.ckpt.config['seed']}")


def perplexities(who: Asker, own: str, ids: Any, title: str) -> dict[str, float]:
    def of(order: str) -> float:
        def bar(batches: Any) -> Any:
            return tqdm(batches, desc=f"{title}: {order or 'left to right'}", leave=False)

        s = score(who.model, ids, 0, who.draws, who.device, who.dtype, progress=bar, order=order)
        return perplexity(s.nll, s.tokens)

    if own == "masked":
        bound = of("masked")
        return {"ppl_random": bound, "ppl_own": bound}
    if own == "left_to_right":
        return {"ppl": of("")}
    random = of("random")
    return {"ppl": of(""), "ppl_random": random, "ppl_own": random if own == "random" else of(own)}


def run_row(c: OrdersConfig, entry: Entry, data: HeldOut, asked: dict, length: int) -> Row:
    """All that is measured of one run."""
    device = get_device(c.device)
    model, ckpt = load_model(entry.path, device=device, dtype=get_dtype(c.dtype))
    who = Asker(model, model.head.draws(c.samples, c.seed, get_dtype(c.dtype)), device, c.dtype)
    row: Row = {"name": entry.name, "row": name_of(entry), "seed": ckpt.config["seed"]}
    row |= {"step": ckpt.progress["step"], "weights_sha256": weights_digest(ckpt.path)}
    row |= {"commit": commit(), "code": scoring_code(), "training": public(ckpt.config)}
    row |= perplexities(who, ckpt.config.get("order", "left_to_right"), data.ids, entry.name)
    windows = spread(data.ids, c.windows, length)
    for gap in c.gaps:
        for side, bits in middle_bits(who, windows, gap).items():
            row[f"{side}_{gap}"] = bits
    for (kind, share), q in asked.items():
        if kind == "next" or who.order != "left_to_right":
            row[f"kl_{kind}_{share:.0%}"] = divergence(who, q)["kl"]
    if c.samplers and who.order != "left_to_right":
        T = model.trunk.config.block_size
        row["samplers"] = points(who, data.truth.machine, c.texts, T, c.seed)
    return row


def summary(rows: list[Row]) -> tuple[list[str], list[list[str]]]:
    """Titles and cells of the table: a line for each row, the mean over its runs and its interval."""
    keys: dict[str, None] = {}
    for r in rows:
        keys |= dict.fromkeys(k for k, v in r.items() if isinstance(v, float))
    by_row: dict[str, list[Row]] = defaultdict(list)
    for r in rows:
        by_row[r["row"]].append(r)
    order = sorted(keys, key=list(keys).index)
    lines = []
    for name, runs in by_row.items():
        cells = [name, str(len(runs))]
        for key in order:
            values = [r[key] for r in runs if key in r]
            half = student_interval(values)
            spread_ = f" ± {half:.2g}" if half == half else ""
            cells.append(f"{statistics.fmean(values):.4g}{spread_}" if values else "-")
        lines.append(cells)
    titles = {"ppl": "ppl", "ppl_random": "ppl random", "ppl_own": "ppl own"}
    return ["", "runs", *(titles.get(k, k.replace("_", " ")) for k in order)], lines


def sampler_table(rows: list[Row], human: dict[str, float]) -> tuple[list[str], list[list[Any]]]:
    found: dict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)
    for r in rows:
        for p in r.get("samplers", []):
            found[r["row"], p["sampler"]].append(p)
    keys = ("evaluations", "tokens_a_pass", "seconds_a_token", "validity", "true_nll")
    lines: list[list[Any]] = []
    for (row, sampler), runs in found.items():
        lines.append([row, sampler, *(f"{statistics.fmean(p[k] for p in runs):.4g}" for k in keys)])
    lines.append(["truth", "", "", "", "", *(f"{human[k]:.4g}" for k in keys[3:])])
    return ["", "sampler", *(k.replace("_", " ") for k in keys)], lines


def draw(rows: list[Row], human: dict[str, float], out: Path) -> list[Path]:
    """OUT.samplers.png and .svg: words that the language forbids, against model evaluations a text."""
    plt = figures.pyplot()
    fig, ax = plt.subplots(figsize=(5, 3.2))
    by_row: dict[str, list[Row]] = defaultdict(list)
    for r in rows:
        if "samplers" in r:
            by_row[r["row"]].append(r)
    for number, (name, runs) in enumerate(by_row.items()):
        for i, p in enumerate(runs[0]["samplers"]):
            same = [r["samplers"][i] for r in runs]
            x = statistics.fmean(q["evaluations"] for q in same)
            y = 1 - statistics.fmean(q["validity"] for q in same)
            ax.plot(x, y, "o", color=f"C{number}", label=name if i == 0 else None)
            ax.annotate(p["sampler"], (x, y), textcoords="offset points", xytext=(4, 3), size=6)
    ax.set(xscale="log", xlabel="model evaluations a text", ylabel="words that the language forbids")
    ax.legend(frameon=False)
    return figures.write(fig, beside(out, ".samplers"))


def main(argv: list[str]) -> int:
    if wants_help(argv):
        print(__doc__, help_text(OrdersConfig), sep="\n")
        return 0
    c = configure(OrdersConfig, argv)
    c.check()
    c.dtype = settle_dtype(c.dtype, get_device(c.device)).name
    runs = entries(c.checkpoints)
    check_comparable(runs, masked=True)
    first = runs[0].ckpt.config
    folder = Path(c.data) if c.data else found_path(first["data"], runs[0].path)
    data = open_held_out(folder / f"{c.split}.bin")
    length = min(context(r.ckpt.config) for r in runs)
    c.gaps = c.gaps or [gap for gap in (1, 4, 16, 64) if gap <= length - 2]
    if max(c.gaps) > length - 2:
        raise UserError(f"gaps = {c.gaps}: these models read windows of {length} tokens; give shorter gaps")
    if c.samplers and data.truth is None:
        raise UserError(
            f"--samplers needs a corpus whose truth is known (data/grammar), not {folder}: leave it out"
        )
    out = Path(c.out) if c.out else None
    if out:
        check_writable(beside(out, ".json"))
    asked = {}
    if data.truth is not None:
        windows = spread(data.ids, c.truth_windows, length)
        machine = data.truth.machine
        asked = {(k, share): questions(machine, windows, share, k) for k in KINDS for share in c.known}
    rows = [run_row(c, entry, data, asked, length) for entry in runs]
    head, lines = summary(rows)
    tables = [tabulate(lines, head, tablefmt="github", disable_numparse=True)]
    settings = {k: v for k, v in vars(c).items() if k not in ("checkpoints", "data", "device", "out")}
    content: dict[str, Any] = {"settings": settings, "command": " ".join(sys.argv), "versions": versions()}
    if c.samplers:
        human = against_truth(data.truth.machine, spread(data.ids, 200, length))
        content["truth"] = human
        head, lines = sampler_table(rows, human)
        tables.append(tabulate(lines, head, tablefmt="github", disable_numparse=True))
    print("\n\n".join(tables))
    if out:
        with replacing(beside(out, ".json")) as f:
            f.write(json_table(content, [strict(r) for r in rows]).encode())
        with replacing(beside(out, ".md")) as f:
            f.write(("\n\n".join(tables) + "\n").encode())
        if c.samplers:
            draw(rows, human, out)
    return 0


if __name__ == "__main__":
    cli(main)()
