"""The tables of docs/speed.md, from this folder's JSONs.

    python bench/report.py             prints them; docs/build.py --write puts them into the page

A kind of CPU has columns of its own: one with bfloat16 instructions, from bench/*.json; one without, from
bench/avx2/*.json: the same under ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2. A JSON that is not there
leaves its rows or columns out.
"""

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.training import SIZES

BENCH = Path(__file__).resolve().parent
KINDS = {"bf16 CPU": "", "AVX2, emulated": "avx2"}  # title -> folder in bench/
Report = dict[str, Any]


class Column(NamedTuple):
    """Cells of some rows, under headings: row's label -> its cells."""

    headings: list[str]
    rows: dict[str, list[str]]


def line(cells: list[str]) -> str:
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|\n"


def table(first: str, columns: dict[str, Column], left: bool = False) -> str:
    """Columns of each kind of CPU side by side. `left`: the last of each kind is of text."""
    labels = list(dict.fromkeys(label for c in columns.values() for label in c.rows))
    head, rule, body = [first], ["---"], [[label] for label in labels]
    for kind, c in columns.items():
        width = len(c.headings)
        head += [f"{c.headings[0]} ({kind})", *c.headings[1:]]
        rule += ["---:"] * (width - 1) + ["---" if left else "---:"]
        for cells, label in zip(body, labels):
            cells += c.rows.get(label, [""] * width)
    return line(head) + "|" + "|".join(rule) + "|\n" + "".join(map(line, body))


def head_name(r: Report, labels: int) -> str | None:
    """The label of a result of bench/heads.py; None for one that the page does not show."""
    if r["way"] == "chunked":
        return f"**{r['head']}**" + (f", {labels} labels" if r["head"] == "sigmoid" else "")
    return {
        "plain": "softmax, logits materialised (F.cross_entropy)",
        "linear_ce": "softmax, torch's F.linear_cross_entropy, chunked",
    }.get(r["way"])


def heads(report: Report) -> Column:
    results = [(head_name(r, report["labels"]), r) for r in report["results"]]
    results = [(name, r) for name, r in results if name]
    order = ("plain", "linear_ce", "chunked")
    results.sort(key=lambda named: order.index(named[1]["way"]))  # a stable sort: heads stay in order
    dtypes = list(dict.fromkeys(r["dtype"] for r in report["results"]))
    headings, rows = [], {name: [] for name, _ in results}
    for dtype in dtypes:
        headings += [f"{dtype} s", "", "MB"]
        of_dtype = {name: r for name, r in results if r["dtype"] == dtype}
        base = next(r["seconds"] for r in of_dtype.values() if r["way"] == "plain")
        for name, cells in rows.items():
            r = of_dtype.get(name)
            times = [f"{r['seconds']:.2f}", f"{r['seconds'] / base:.2f}x"] if r else ["", ""]
            cells += [*times, f"{r['peak_mb']:.0f}" if r else ""]
    return Column(headings, rows)


# What is not named here is "ours, <program>"
PROGRAMS = {
    "baseline": "ours, softmax",
    "nanoGPT, float32": "nanoGPT, its default on a CPU (float32)",
    "nanoGPT, bfloat16": "nanoGPT, autocast forced to bfloat16",
    "sig_gpt": "ours, Sig-GPT, stored labels",
    "bayes_gpt": "ours, Bayes-GPT",
    "sig_gpt, online": "ours, Sig-GPT, online teacher of the student's size",
}


def training(report: Report) -> Column:
    results = {r["program"]: r for r in report["results"]}
    dtype = results["baseline"].get("dtype", "bfloat16")  # JSONs that do not say are of bfloat16
    rows = {}
    for program, r in results.items():
        speed = [f"{r['tokens_per_s']:,.0f}", f"{r['speed_of_baseline']:.2f}x"]
        rows[PROGRAMS.get(program, f"ours, {program}")] = [*speed, f"{r['losses'][-1]:.3f}"]
    return Column(
        [f"tokens/s, ours in {dtype}", "", f"loss after {len(results['baseline']['losses'])} steps"], rows
    )


def evaluation(report: Report) -> dict[str, list[str]]:
    rows = {}
    for r in report["results"]:
        if r["what"] == "evaluation":
            rows[f"evaluation of {r['tokens']:,} tokens, {report['size']}"] = [
                f"{r['evaluation']:.1f} s",
                f"{r['evaluation'] / r['forward']:.2f}x of the bare forward pass",
            ]
        elif r["what"] == "store":
            rows[f"label store, k = 50 at half of the positions, {report['size']} teacher"] = [
                f"{r['tokens'] / r['store']:,.0f} tokens/s",
                f"{r['forward'] / r['store']:.0%} of the bare forward pass's",
            ]
    return rows


def sampling(report: Report) -> dict[str, list[str]]:
    rows = {}
    for r in report["results"]:
        who, _, dtype = r["program"].partition(", ")
        if who != "ours":
            continue
        same_batch = [t for t in report["results"] if t["batch"] == r["batch"]]
        times = {t["program"]: t["seconds"] / r["seconds"] for t in same_batch}
        beside = []
        if f"transformers, {dtype}" in times:
            beside.append(f"transformers, same dtype, {times[f'transformers, {dtype}']:.2f}x")
        if dtype != "float32" and "transformers, float32" in times:
            beside.append(f"transformers in float32 {times['transformers, float32']:.2f}x")
        if "nanoGPT, float32" in times:
            beside.append(f"nanoGPT (float32) {times['nanoGPT, float32']:.1f}x")
        label = f"sampling {report['tokens']} tokens, {report['size']}, batch {r['batch']}, {dtype}"
        rows[label] = [f"{r['seconds']:.1f} s", "; ".join(beside)]
    return rows


def self_bleu(report: Report) -> dict[str, list[str]]:
    ours = [r for r in report["results"] if r["program"] == "metrics.self_bleu_sacre"]
    rows = {
        f"Self-BLEU, {r['texts']:,} texts of {r['words']} words": [f"{r['seconds']:.2g} s", ""] for r in ours
    }
    sacre = next(r for r in report["results"] if r["program"] == "sacrebleu")
    next(iter(rows.values()))[1] = f"sacreBLEU {sacre['seconds_a_text']:.2f} s *a text*"
    return rows


def tokenising(report: Report) -> dict[str, list[str]]:
    results = {r["program"]: r for r in report["results"]}
    ours, more, theirs = (results.get(name) for name in ("ours", "ours, more text", "nanoGPT"))
    beside = ""
    if theirs:
        times = theirs["seconds"] / ours["seconds"]
        beside = f"nanoGPT's way (datasets.map) {theirs['seconds']:.1f} s, {times:.1f}x; "
        beside += f"{theirs['peak_mb']:.0f} MB and workers"
    memory = f"{ours['peak_mb']:.0f} MB ({more['peak_mb']:.0f} MB for {report['memory']} times the text)"
    label = f"tokenising {ours['bytes'] / 1e6:.0f} MB, file to token file"
    return {label: [f"{ours['seconds']:.1f} s, {memory}", beside]}


OTHERS = {"scaling": evaluation, "sampling": sampling, "metrics": self_bleu, "prepare": tokenising}


def steadiness(report: Report) -> Column:
    rows = {}
    for r in report["results"]:
        median = [f"{r['median']:.2f}", f"{r['median_of_plain']:.2f}x"]
        worst = [f"{r['worst']:.2f}", f"{r['worst_of_plain']:.2f}x"]
        rows[f"{r['program']}, {r['busy']} busy beside"] = median + worst
    return Column([f"median s of {report['runs']} runs, {report['dtype']}", "", "worst s", ""], rows)


def of_sizes(reports: dict[str, Report], keys: tuple[str, ...]) -> tuple:
    """What all the reports of a table measured. ValueError if they measured different things."""
    sizes = {tuple(report[key] for key in keys) for report in reports.values()}
    if len(sizes) > 1:
        raise ValueError(
            f"the JSONs of one table differ in {', '.join(keys)}: {sorted(sizes)}; "
            "measure both kinds of CPU with the same arguments"
        )
    return sizes.pop()


def memory(kind: str, report: Report) -> str:
    few, *_, many = (r for r in report["results"] if r["what"] == "memory")
    rows, mb = (f"{few[key]:,.0f} to {many[key]:,.0f}" for key in ("rows", "peak_mb"))
    return (
        f"MB ({kind}): peak memory of one step above inputs, parameters and their gradients; "
        f"of {rows} rows it goes from {mb} (the gradient of the rows themselves).\n"
    )


def micro_batches(kind: str, report: Report) -> str:
    results = [r for r in report["results"] if "micro" in r["program"]]
    speeds = [f"{r['program'].split(', ')[1].split()[0]}: {r['tokens_per_s']:,.0f} tokens/s" for r in results]
    return f"Micro-batches ({kind}): {', '.join(speeds)}.\n"


def model_of(size: str) -> str:
    s = SIZES[size]
    return (
        f"{size} parameters ({s['n_layer']} layers, {s['n_head']} heads, {s['n_embd']} wide, "
        f"block {s['block_size']}, batch {s['batch_size']}, V = 50,257)"
    )


def block(bench: Path = BENCH) -> str:
    """The tables as Markdown."""

    def found(name: str) -> dict[str, Report]:
        paths = {kind: bench / folder / f"{name}.json" for kind, folder in KINDS.items()}
        return {kind: json.loads(path.read_text()) for kind, path in paths.items() if path.is_file()}

    parts = []
    tables = (("heads", "head, forward + backward", heads), ("steady", "beside busy processes", steadiness))
    for name, what, column in tables:
        if reports := found(name):
            rows, dim, vocab = of_sizes(reports, ("rows", "dim", "vocab"))
            title = f"{what}, {rows:,} rows, {dim} wide, V = {vocab:,}"
            parts.append(table(title, {kind: column(report) for kind, report in reports.items()}))
        if name == "heads":
            parts += [memory(kind, report) for kind, report in found("scaling").items()]
    if reports := found("training"):
        (size,) = of_sizes(reports, ("size",))
        title = f"whole training step, {model_of(size)}"
        parts.append(table(title, {kind: training(report) for kind, report in reports.items()}))
    parts += [micro_batches(kind, report) for kind, report in found("micro").items()]
    others: dict[str, Column] = {}
    for name, rows_of in OTHERS.items():
        for kind, report in found(name).items():
            others.setdefault(kind, Column(["ours", "beside"], {})).rows.update(rows_of(report))
    if others:
        parts.append(table("what", others, left=True))
    return "\n".join(parts)


if __name__ == "__main__":
    sys.stdout.write(block())
