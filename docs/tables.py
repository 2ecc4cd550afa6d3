"""The tables of README.md and docs/: the blocks that a template may name, as Markdown."""

import math
import statistics
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from bench import report
from docs import gallery, sources
from docs.sources import Entry, Row
from labs.classes.judge import PUBLISHED
from labs.climbs import errors as climbs
from labs.synthetic.tasks import TASKS
from measures.find import find_measure

Numbers = dict[str, Any]


def markdown(head: list[str], body: list[list[str]], left: int = 1) -> str:
    """A table whose first `left` columns are text and the others numbers; no newline at its end."""
    rule = ["---" if i < left else "---:" for i in range(len(head))]
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, rule, *body))


def cell(row: Row, key: str, form: str) -> str:
    """The number, or "-" where the row has none; an infinity is one."""
    return format(getattr(row, key), form) if key in row.entry else "-"


def lines_of(table: dict[str, Row], columns: dict[str, tuple[str, str]], names: list[str]) -> list[list[str]]:
    out = []
    for name in names:
        row = table[name]
        seeds = "" if row.entry.get("reference") else str(len(row.entry.get("runs", [0])))
        out.append([name, seeds, *(cell(row, key, form) for key, form in columns.values())])
    return out


def findings_table(table: dict[str, Row], columns: dict[str, tuple[str, str]]) -> str:
    """The rows of a table of results/ as they stand, then its references."""
    names = [n for n, row in table.items() if not row.entry.get("reference")]
    names += [n for n, row in table.items() if row.entry.get("reference")]
    return markdown(["row", "seeds", *columns], lines_of(table, columns, names))


TEXT = {
    "Self-BLEU": ("self_bleu", ".2f"),
    "Distinct-4": ("distinct_4", ".4f"),
    "seq-rep-4": ("seq_rep_4", ".4f"),
    "Zipf": ("zipf", ".3f"),
}
GRAMMAR_TABLE = {
    "PPL/floor": ("ppl_floor", ".3f"),
    "TV": ("tv", ".3f"),
    "forbidden": ("mass_invalid", ".3f"),
    "alternatives": ("alternatives", ".3f"),
    "alt. error": ("alternatives_error", ".3f"),
    "coverage(0.9)": ("coverage", ".3f"),
    "validity": ("validity", ".3f"),
}
SMALL_TABLE = {
    "PPL_tok": ("ppl_tok", ".1f"),
    "bits/byte": ("bits_per_byte", ".3f"),
    "ECE": ("ece", ".4f"),
    **TEXT,
}

GAIN = "softmax, logits x 4"


POINT = ["learning rate", "gain", "slope"]


def point(row: str, at: SimpleNamespace, overlay: str) -> list[str]:
    """The best point of a row's search, and the slope of log p there when training starts."""
    slope = "-" if gallery.head_of(row).sparse else f"{gallery.start_slope(row, at.gain, overlay):.1f}"
    return [f"{at.learning_rate:.2g}", f"{at.gain:.2g}", slope]


def by(table: dict[str, Row], key: str) -> list[str]:
    """The rows of models, lowest first."""
    names = [row for row, r in table.items() if not r.entry.get("reference")]
    return sorted(names, key=lambda row: getattr(table[row], key).mean)


def starred(row: Row, key: str, form: str) -> str:
    return cell(row, key, form) + (" *" if row.entry.get(f"{key}_best") else "")


def tuned_table(n: Numbers, name: str) -> str:
    """A tuned table: each row's best point, what its search bought, and fresh seeds there, best first."""
    table, found, base = n[name], n["search"][name], "baseline"
    ratio = sources.ratios(sources.runs(name), "ppl_eps")
    half = found[base].trials // 2
    body = []
    for row in by(table, "ppl_eps"):
        at, r = found[row], table[row]
        bought = [f"{at.bought[k]:.0f}" for k in (1, half, at.trials)]
        over = "1" if row == base else f"{ratio[row]:.3f}"
        numbers = [starred(r, "ppl_eps", ".1f"), over, cell(r, "self_bleu", ".1f")]
        body.append([f"`{row}`", *point(row, at, "brief"), *bought, *numbers])
    head = ["row", *POINT, "1 trial", f"{half} trials", "all"]
    return markdown([*head, "test PPL_eps", "over softmax's", "Self-BLEU"], body)


def later_table(n: Numbers) -> str:
    """Tuned softmax's test perplexity at each budget, and that of the others over it, paired by seed."""
    body = [["`baseline`, test PPL_eps", *(f"{n[name]['baseline'].ppl_eps:.1f}" for name in sources.BUDGETS)]]
    for row in sorted(n["ratio_1000"].keys() - {"baseline"}):
        at = [ratio.get(row) for ratio in n["ratio_at"].values()]
        body.append([f"`{row}`, over it", *(f"{r:.3f}" if r else "-" for r in at)])
    return markdown(["row", *sources.BUDGETS.values()], body)


def grammar_table(n: Numbers) -> str:
    """The tuned table of the known language: each row's best point, and how near to the truth it comes."""
    table, found, difference = n["grammar"], n["search"]["grammar"], n["grammar_diff"]
    body = []
    for row in by(table, "kl_truth_model"):
        r = table[row]
        seeds = str(len(r.entry["runs"]))
        to_softmax = "" if row == "baseline" else f"{difference[row].kl_truth_model:+.3f}"
        kl = [starred(r, "kl_truth_model", ".3f"), to_softmax]
        others = [cell(r, key, form) for key, form in GRAMMAR_TABLE.values()]
        body.append([f"`{row}`", seeds, *point(row, found[row], "grammar"), *kl, *others])
    return markdown(["row", "seeds", *POINT, "KL(p, m)", "over softmax's", *GRAMMAR_TABLE], body)


# config/memorise.py: readings of the text -> the step at which they are done
READINGS = {1: 25, 4: 98, 16: 390, 64: 1560}
FIT = 2.0  # nats a token on the train text, at which heads are compared


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


def fits(of: dict[str, dict[int, list[Entry]]]) -> dict[str, sources.Span]:
    """KL(p, m) at equal fit of each row of the table `memorise`."""
    each = {
        row: [at_equal_fit(curve, "kl_truth_model") for curve in seeds.values()] for row, seeds in of.items()
    }
    return {row: sources.Span(found) for row, found in each.items()}


def memorise_table(n: Numbers) -> str:
    """What reading a text many times does: over the readings, and at equal fit, best first."""
    body, fit = [], fits(n["memorised"])
    for row in sorted(fit, key=lambda row: fit[row].mean):
        curves = n["memorised"][row].values()
        line = [f"`{row}`"]
        for key, form in (("train_alternatives", ".3f"), ("kl_truth_model", ".2f")):
            for step in READINGS.values():
                values = [float(e[key]) for c in curves for e in c if e["step"] == step]
                line.append(format(sources.Span(values), form))
        line.append("-" if any(map(math.isnan, fit[row])) else format(fit[row], ".2f"))
        body.append(line)
    times = [f"{k} x" for k in READINGS]
    head = ["row", *(f"alternatives, {t}" for t in times), *(f"KL, {t}" for t in times), "KL at equal fit"]
    return markdown(head, body)


def gain_table(n: Numbers) -> str:
    """Validation perplexity of seed 1 at each gain of softmax's logits."""
    runs = sorted((r for r in n["single"].values() if r.gain and r.seed == 1), key=lambda r: r.gain)
    head = ["softmax, logits times", *(f"{r.gain:g}" for r in runs)]
    return markdown(head, [["validation perplexity", *(f"{r.best:.1f}" for r in runs)]])


ADAM = ["beta_2 .9", "as tuned", "beta_2 .99", "beta_2 .999", "warm-up 5", "warm-up 75"]


def adam_table(n: Numbers) -> str:
    """Validation perplexity of two heads at their tuned points, with another beta_2 or warm-up."""
    head = ["", *(name if name != "as tuned" else "as tuned: .95, 25 steps" for name in ADAM)]
    rows = ("baseline", "am_softmax")
    body = [
        [f"`{row}`", *(f"{n['single'][f'250 steps, {row}, {name}'].best:.1f}" for name in ADAM)]
        for row in rows
    ]
    return markdown(head, body)


def budget_table(n: Numbers) -> str:
    """The larger model's validation perplexity over its steps, at two gains."""
    runs = [n["single"][f"small, {name}"] for name in ("softmax", "gain 4")]
    head = ["validation perplexity after", *(f"{step:,} steps" for step in runs[0].val_ppl)]
    names = ("softmax", GAIN)
    return markdown(head, [[name, *(f"{p:.1f}" for p in r.val_ppl.values())] for name, r in zip(names, runs)])


# rows of results/labels.jsonl, in the order of the table
LABELS = {
    "true token alone": "sig_gpt-small-true",
    "soft k = 50 (`sig_gpt`)": "sig_gpt-small",
    "hard k = 1": "sig_gpt-small-hard1",
    "hard k = 5": "sig_gpt-small-hard5",
    "hard k = 20": "sig_gpt-small-hard20",
    "hard k = 50": "sig_gpt-small-hard50",
}


def labels_table(n: Numbers) -> str:
    base = n["labels"]["baseline-small"].ppl_tok
    body = []
    for name, row in LABELS.items():
        ppl = n["labels"][row].ppl_tok
        body.append([name, f"{ppl:.1f}", f"{ppl / base:.2f}x", f"{n['labels'][row].self_bleu:.1f}"])
    return markdown(["labels, sigmoid head", "PPL_tok", "over softmax's", "Self-BLEU"], body)


# GPU of runtime.profile.PEAK_FLOPS -> the shares of its peak that are assumed
ASSUMED = {"NVIDIA GeForce RTX 3090": "RTX 3090", "NVIDIA GeForce RTX 4090": "RTX 4090"}
ASSUMED |= {"NVIDIA A100-SXM4-40GB": "A100", "NVIDIA H100 80GB HBM3": "H100", "NVIDIA H200": "H200"}
SHARES = (0.2, 0.4)


def hours_table(n: Numbers) -> str:
    body = []
    for gpu, name in ASSUMED.items():
        peak = f"{sources.PEAK_FLOPS[gpu] / 1e12:.0f}"
        body.append([name, peak, *(f"{sources.hours(gpu, share):.1f}" for share in SHARES)])
    head = ["GPU", "peak, TFLOP/s in bfloat16", *(f"hours at MFU {share:.0%}" for share in SHARES)]
    return markdown(head, body)


# rows of results/images_ablation -> as the GS-Softmax document names them
ABLATED = {
    "temperature_0.8": "softmax, tau = 0.8",
    "baseline": "softmax",
    "temperature_1.2": "softmax, tau = 1.2",
    "temperature": "softmax, tau = 2",
    "smooth_gpt_10": "label smoothing",
    "gs_softmax_f1": "GS F1",
}
DRAWN = {"fd": "FD", "precision": "precision", "recall": "recall", "accuracy": "accuracy"}


def sampled_at_table(n: Numbers, row: str) -> str:
    """Images by the temperature of sampling."""
    if row not in n["ablation"]:
        return "Not measured yet."
    at = n["ablation"][row].at
    body = [[t, *(f"{getattr(drawn, key):.1f}" for key in DRAWN)] for t, drawn in at.items()]
    return markdown(["temperature", *DRAWN.values()], body)


def trained_with_table(n: Numbers) -> str:
    """Images by what is changed in training."""
    body = []
    for row, name in ABLATED.items():
        if runs := n["ablation"].get(row):
            drawn = runs.at["1"]
            body.append([name, f"{runs.bits_code:.3f}", *(f"{getattr(drawn, key):.1f}" for key in DRAWN)])
    return markdown(["head", "bits a code", *DRAWN.values()], body)


def mazes_table(n: Numbers) -> str:
    """Mazes solved after fewer and more steps."""
    asked = [("baseline", "left to right"), ("sigma_gpt", "left to right"), ("sigma_gpt", "random order")]
    body = []
    for steps, table in n["mazes_at"].items():
        solved = [table[row].by[sampler].solved if row in table else None for row, sampler in asked]
        counts = dict.fromkeys(str(len(table[row].entries)) for row, _ in asked if row in table)
        shares = ["-" if s is None else f"{s.mean:.1%}" for s in solved]
        body.append([f"{steps:,}", f"{steps * 32 / 100_000:.1f}", "/".join(counts), *shares])
    return markdown(["steps", "readings", "runs", *(f"`{row}`, {sampler}" for row, sampler in asked)], body)


def there(table: dict[str, Row], name: str, key: str, form: str) -> str:
    """`cell`, or "-" where the table has no such row, or is not there."""
    return cell(table[name], key, form) if name in table else "-"


def classify_table(n: Numbers) -> str:
    """Test accuracy with the networks of Banerjee et al. 2021, beside what they print."""
    names = list(dict.fromkeys(row for figures in PUBLISHED.values() for row in figures))
    body = []
    for name in names:
        line = [f"`{name}`"]
        for images, figures in PUBLISHED.items():
            line += [f"{figures[name]:.2f}", there(n["classified"][images], name, "accuracy", ".2f")]
        body.append(line)
    head = [f"{images}{end}" for images in ("MNIST", "CIFAR-10", "CIFAR-100") for end in ("", ", here")]
    return markdown(["row", *head], body)


def classify_brief_table(n: Numbers) -> str:
    """The small network on MNIST, as it is and with the gain of each row tuned."""
    tables = [n["classified"][name] for name in ("mnist_brief", "mnist_brief_tuned")]
    names = list(dict.fromkeys(name for table in tables for name in table)) or ["softmax"]
    columns = (("accuracy", ".2f"), ("nll", ".4f"), ("ece", ".4f"))
    body = []
    for name in names:
        measured = [[there(table, name, key, form) for key, form in columns] for table in tables]
        body.append([f"`{name}`", *measured[0], there(tables[1], name, "gain", "g"), *measured[1]])
    head = ["accuracy", "NLL", "ECE", "gain", "accuracy, tuned", "NLL, tuned", "ECE, tuned"]
    return markdown(["row", *head], body)


# tables that a page shows as they are -> their measure
WRITTEN = {name: "orders" for name in ("orders", "orders_grammar", "mazes_small", "climbs", "climbs_real")}
WRITTEN |= {"images": "images", "climbs.rest": "rest", "climbs_real.rest": "rest"}


def as_written(name: str) -> str:
    """The tables of results/NAME.jsonl, without what stands under them."""
    found = sources.stored(name, WRITTEN[name])
    if not found:
        return "Not measured yet."
    view = climbs.view if WRITTEN[name] == "rest" else find_measure(WRITTEN[name]).view
    parts = view(found).markdown.strip().split("\n\n")
    return "\n\n".join(part for part in parts if part[:1] == "|")


# the columns of the synthetic table: a sampler of evaluation/samplers.py -> its heading
ROUNDS = {
    "burst, 1 order": "burst, 1 order",
    "burst, 5 orders": "5 orders",
    "burst, 20 orders": "20 orders",
    "speculative": "speculative",
}


def rounds_table(row: str) -> str:
    """Rounds of each sampler on the sequences whose law is known: a perfect model's, and those of `row`."""
    perfect, body = sources.read("bench/perfect.json"), []
    for name, rounds in perfect["results"].items():
        best = TASKS[name](perfect["length"]).burst_steps()
        figure = f"{'at most ' if best.at_most else ''}{best.mean:.1f}"
        body.append([name, "exact", figure, *(f"{statistics.fmean(rounds[s]):.1f}" for s in ROUNDS), "1"])
        of_row = sources.measured(f"synthetic_{name}").get(row)
        if of_row:
            own = [f"{of_row.by[s].rounds:.2f}" for s in ROUNDS]
            body.append(["", f"`{row}`", "", *own, f"{of_row.by['burst, 20 orders'].validity:.2f}"])
    return markdown(
        ["sequences", "model", "best of all orders", *ROUNDS.values(), "valid, 20 orders"], body, 2
    )


def beside_sigma_gpt() -> str:
    """idiap/sigma-gpt's samplers and ours, of bench/sigma_gpt.json."""
    body = []
    for r in sources.read("bench/sigma_gpt.json")["results"]["samplers"]:
        seconds = sorted(r["seconds_a_text"])
        each = f"{statistics.median(seconds):.3f} ({seconds[0]:.3f} to {seconds[-1]:.3f})"
        if seconds[0] <= 0:
            each = "too few to tell"
        alone = f"{statistics.median(r['seconds_alone']):.2f}" if "seconds_alone" in r else "the same"
        error = 1.96 * math.sqrt(r["validity"] * (1 - r["validity"]) / r["judged"])
        judged = [f"{r['validity']:.2f} ± {error:.2f}", str(r["judged"]), f"{r['pair_tv']:.2f}"]
        body.append([r["program"], r["sampler"], each, alone, *judged])
    head = ["program", "sampler", "s a text, of 64", "s, one alone", "words allowed", "of", "pair TV"]
    return markdown(head, body, 2)


def blocks(n: Numbers) -> SimpleNamespace:
    return SimpleNamespace(
        grammar=grammar_table(n),
        small=findings_table(n["small"], SMALL_TABLE),
        gain=gain_table(n),
        budget=budget_table(n),
        adam=adam_table(n),
        tuned=tuned_table(n, "heads_250"),
        tuned_muon=tuned_table(n, "muon_250"),
        tuned_1000=tuned_table(n, "heads"),
        later=later_table(n),
        memorise=memorise_table(n),
        labels=labels_table(n),
        hours=hours_table(n),
        classify=classify_table(n),
        classify_brief=classify_brief_table(n),
        mazes_steps=mazes_table(n),
        sampled_at=sampled_at_table(n, "gs_softmax_f1"),
        trained_with=trained_with_table(n),
        **{name.replace(".", "_"): as_written(name) for name in WRITTEN},
        rounds=rounds_table("sigma_gpt_random"),
        beside_sigma_gpt=beside_sigma_gpt(),
        bench=report.block().rstrip("\n"),
    )
