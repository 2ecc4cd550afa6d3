"""The text measure: perplexity of what is sampled, calibration, diversity beside human text, and where the
exact truth is known the distance to it. `python eval_diversity.py` is its front door."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import UserError
from common.files import beside, check_writable
from common.files import replacing as whole_file
from common.places import labs_with
from evaluate import figures
from evaluate.checks import check_planned, check_text
from evaluate.columns import HONEST, PAPER, TRUTH, Column, shown
from evaluate.decoding import drawn_by
from evaluate.diversity import SPACED
from evaluate.find import scorers
from evaluate.jobs import data_of
from evaluate.measure import Measure, NamedRun, Session, Subject
from evaluate.names import REFERENCES, RENAMED, check_apart
from evaluate.search import search_errors
from evaluate.settings import EvaluationConfig, PaperConfig, Settings, settings
from evaluate.statistics import LEAST_SEEDS, holm
from evaluate.store import Row
from evaluate.summary import grouped, has_seeds, quality_of, ratios, summarise
from evaluate.text_files import Texts, apart, fitting
from evaluate.text_numbers import model_numbers, open_all, reference_row, text_intervals, validity
from evaluate.texts import cut, decode, measured, text_metrics
from evaluate.views import (
    Grid,
    View,
    cells,
    csv_text,
    number,
    problems,
    samples_file,
    sheet_of,
    with_intervals,
)
from model import context
from training.checkpoint import Degenerate

if TYPE_CHECKING:  # see figures.pyplot
    from matplotlib.figure import Figure


def check_place(c: EvaluationConfig) -> None:
    """UserError or OSError if texts cannot be written where `c` has them."""
    if c.out:
        check_writable(samples_file(Path(c.out), "human"))


def scorer_digest(c: EvaluationConfig) -> str:
    """SHA-256 of the weights that `c` judges texts by; "" for none."""
    return scorers().digest(c.scorer) if c.scorer else ""


class TextSession(Session):
    """The runs and files of texts that are asked for, and the data that they are measured on."""

    def __init__(self, c: EvaluationConfig):
        """UserError for all that cannot be measured, before any work."""
        files, runs = apart(c.checkpoints)
        if not runs:
            raise UserError(
                "a file of texts is a row beside a run's: the run says which corpus and which prompts are "
                "meant; give one run, too"
            )
        self.c = c
        opened = open_all(replace(c, checkpoints=runs), scorer_digest(c))
        named, self.s, self.data, self.device = opened
        subjects: list[NamedRun | Texts] = [*named, *(fitting(file, self.s) for file in files)]
        check_apart([*REFERENCES, *(subject.name for subject in subjects)], RENAMED)
        self.subjects: Sequence[Subject] = subjects
        self.settings, self.reference_names = vars(self.s), REFERENCES
        check_place(c)
        self.judge = scorers().judge(c.scorer, self.data, self.s, self.device) if c.scorer else None

    def whole(self, row: Row) -> bool:
        """Whether nothing of a kept row is missing: its texts, or MAUVE, where the package was not installed
        then; and whether its intervals are over as many halves."""
        has_texts = not self.c.out or "problem" in row or self._has_texts(row["name"])
        as_many = row.get("halves", self.c.halves) == self.c.halves
        return has_texts and as_many and not (self.judge and self.judge.lacks(row))

    def _has_texts(self, name: str) -> bool:
        """Whether as many as are to be kept are there."""
        file, texts = samples_file(Path(self.c.out), name), self.s.texts
        return file.is_file() and file.read_bytes().count(b"\n") >= min(self.c.texts_kept or texts, texts)

    def numbers(self, subject: NamedRun | Texts) -> Row:
        """The numbers of a run, or of a file of texts; its texts go to OUT.samples."""
        if isinstance(subject, Texts):
            prompts, texts = subject.prompts, subject.texts
            row: Row = {"file": subject.path.name}
        else:
            row, new = model_numbers(subject.path, subject.name, self.data, self.s, self.device)
            prompts = self.data.prompt_texts
            texts = decode(self.data.tokenizer, self.data.prompts.prompt, new, self.s)
            row |= validity(self.data, new)
        self._write_texts(subject.name, texts)
        try:
            row |= measured(text_metrics, texts, self.s.loops, self.s.words, self.s.tokenize)
            row |= measured(self.judge.numbers, texts, prompts) if self.judge else {}
        except Degenerate as error:
            row["problem"] = error.reason  # the model's other numbers stand
        return row

    def references(self) -> list[Row]:
        """Human text, noise and a loop, with intervals over their texts."""
        rows = []
        for name in REFERENCES:
            row, texts = reference_row(name, self.data, self.s)
            if self.judge:  # UserError if it cannot read those of a reference
                row |= self.judge.numbers(texts, self.data.prompt_texts, halves=self.c.halves)
            if self.c.out and self.s.protocol != "paper":  # else nobody sees them
                measured_texts = [cut(t, self.s.words, self.s.tokenize) for t in texts]
                row |= text_intervals(measured_texts, self.c.halves, self.s.tokenize)
                row["halves"] = self.c.halves
            self._write_texts(name, texts)
            rows.append(row)
        rows[0]["about"] = self._about()
        return rows

    def _about(self) -> dict[str, Any]:
        """What a view says of the data beside the settings."""
        split = self.data.split.info
        about: dict[str, Any] = {"tokenizer": self.data.tokenizer.name, "complete": split["complete"]}
        if self.data.truth:
            about["truth"] = {k: self.data.truth.info[k] for k in ("entropy_rate", "entropy")}
        return about | ({"scorer": self.judge.note} if self.judge else {})

    def _write_texts(self, name: str, texts: list[str]) -> None:
        if not self.c.out:
            return
        path = samples_file(Path(self.c.out), name)
        with whole_file(path) as file:
            for text in texts[: self.c.texts_kept or None]:
                file.write((json.dumps(text, ensure_ascii=False) + "\n").encode())


class TextMeasure(Measure):
    name, config, session = "text", PaperConfig, TextSession

    def check(self, c: EvaluationConfig, wanted: Sequence[dict[str, Any]]) -> dict[str, Any]:
        check_place(c)
        for config in wanted:
            check_text(Path(config["out_dir"]), config["dataset"])
        check_planned(wanted)
        reads = min(context(config) for config in wanted)  # a model of any order: its block less 1
        s = settings(c, reads, scorer_digest(c), train=data_of(wanted[0], c.data) or "")
        # the corpus' hashes may be known with the runs alone, and what "auto" is with the device; without a
        # scorer, there is none
        return {k: v for k, v in vars(s).items() if v not in ("", "auto") or k == "scorer"}

    def view(self, rows: list[Row]) -> View:
        return summary_view(rows) if has_seeds(rows) else run_view(rows)

    def draw(self, rows: list[Row], out: Path) -> list[Path]:
        """OUT.ece.png: how well each row is calibrated, where any is known to be."""
        if not any("ece" in r for r in rows):
            return []
        calibrated = [r for r in summary_of(rows) if "ece" in r]
        return figures.write(calibration(calibrated), beside(out, ".ece"))


# -----------------------------------------------------------------------------
# Views


def ratios_view(rows: list[Row], trials: list[Row]) -> View:
    """Each row's perplexity over the first row's, lowest first; what is apart after Holm's correction. Empty
    where no row has one."""
    each = ratios(rows, search_errors(trials))
    apart = holm({name: d.p for name, d in each.items() if not math.isnan(d.p)})
    lines = []
    for name, d in each.items():
        ends = [f"{math.exp(x):.3f}" for x in (d.mean, d.mean - d.half, d.mean + d.half)]
        side = "ahead" if d.mean < 0 else "behind"
        lines.append([name, *ends, f"{d.p:.2g}", side if name in apart else "-"])
    note = RATIOS.format(key=quality_of(rows), first=next(iter(grouped(rows)), ""))
    return View([Grid(["", "ratio", "from", "to", "p", "Holm"], lines, "numbers"), note] if each else [])


RATIOS = (
    "{key} over that of {first}, a geometric mean over common seeds, and its 95% interval: Student's t with "
    "the degrees of freedom of Welch and Satterthwaite, of the spread over seeds and of the error of both "
    "searches (bench/search_error.py). p: two-sided, of no difference. Holm: what is ahead or behind after "
    "the correction for all rows, alpha .05."
)

MAIN = ("kl_truth_model", "ppl_eps"), ("self_bleu",)  # of each the first that there is: shown seed by seed


def columns_in(rows: list[Row]) -> tuple[Column, ...]:
    """The columns that the rows have a number for."""
    scored = scorers().COLUMNS if any("scorer" in r for r in rows) and labs_with("scorer") else ()
    known = PAPER if rows[0]["settings"]["protocol"] == "paper" else (*HONEST, *scored, *TRUTH)
    return tuple(c for c in known if any(c.key in r for r in rows))


def explain(rows: list[Row], columns: tuple[Column, ...]) -> list[str]:
    """The lines under a table: its settings and what the columns are."""
    s = Settings.of(rows[0])
    unknown: dict[str, Any] = {"tokenizer": "?", "complete": True}
    about = next((r["about"] for r in rows if "about" in r), unknown)
    complete = " (not the whole official split)" if about["complete"] is False else ""
    budget = f"{s.texts} texts" + (f" in {s.loops} loops" if s.loops > 1 else "")
    words = f", cut to their first {s.words} words" if s.words else ""
    words += f", words by sacreBLEU's {s.tokenize}" if s.tokenize != SPACED else ""
    return [
        f"Protocol {s.protocol}: {s.split} split{complete}, tokenizer {about['tokenizer']}; "
        f"{budget}, {s.prompt_tokens} prompt + {s.new_tokens} new tokens{words}, "
        f"{drawn_by(s)}, seed {s.seed} and each run's own; block {s.block_size}, stride {s.stride}; "
        f"Bayesian rows: {s.samples} weight samples; {s.dtype}.",
        *(f"{c.title}: {c.what}{'' if c.shown else ' (in the CSV and the rows)'}." for c in columns),
        *([known_truth(about["truth"])] if "truth" in about else []),
        *([about["scorer"]] if "scorer" in about else []),
    ]


def known_truth(truth: Row) -> str:
    """The line about the columns TRUTH."""
    perplexity = math.exp(truth["entropy_rate"])
    return (
        f"The truth p is known exactly: {truth['entropy_rate']:.4f} nats a token in closed form "
        f"(perplexity {perplexity:.2f}), {truth['entropy']:.4f} over this split. "
        "PPL/floor to coverage are means over every token but those of the first document, "
        "each scored with its whole document in the model's window (coverage at one of eight of them); "
        "the human row is a perfect model there."
    )


def run_view(rows: list[Row]) -> View:
    """A line a run, in the order of the rows; the references last."""
    columns = columns_in(rows)
    seen, (protocol, *listed) = shown(columns, rows), explain(rows, columns)
    keys = [c.key for c in columns]
    sheet = [["name", *keys], *([r["name"], *(r.get(k, "") for k in keys)] for r in rows)]
    table = Grid.of_columns(seen, cells(rows, seen))
    return View([table, [protocol, SINGLE], ["- " + n for n in listed]], csv_text(sheet))


SINGLE = (
    "(+x) is the distance to human text; up or down alone is not better. Single runs are not marked: "
    "what is best takes several seeds (table.py)."
)


def summary_of(rows: list[Row]) -> list[Row]:
    """A row a training, over its seeds; the references last."""
    return summarise(rows, tuple(c for c in columns_in(rows) if c.key != "step"))


def summary_view(rows: list[Row]) -> View:
    """A line a training, with means over its seeds; under it the main columns seed by seed."""
    summary = summary_of(rows)
    columns = tuple(c for c in columns_in(rows) if c.key != "step")
    seen = shown(columns, summary)
    protocol, *listed = explain(rows, columns)
    models = [r for r in summary if not r.get("reference")]
    titles = {c.key: c.title for c in columns}
    quality = titles.get(quality_of(models), "")
    competing = COMPETING.format(first=models[0]["name"], quality=quality, worse=worse(models))
    listed = ["- " + note for note in (*listed, *problems(rows))]
    table = Grid.of_columns(seen, with_intervals(summary, seen))
    parts: list[Grid | str | list[str]] = [
        table,
        seeds_note(models),
        MARKS + (competing if quality else "."),
        by_seed(models, columns),
        protocol,
        listed,
    ]
    return View(parts, sheet_of(summary, columns))


def seeds_note(models: list[Row]) -> str:
    most = max(len(r["seeds"]) for r in models)
    fewer = ", ".join(f"{r['name']}: {len(r['seeds'])}" for r in models if len(r["seeds"]) < most)
    counted = f"{most} seed" + "s" * (most > 1) + (f" ({fewer})" if fewer else "")
    return (
        f"Mean of {counted} ± half of its 95% interval: Student's t over the runs, each of which is trained "
        "and sampled with a seed of its own; the prompts are the same. The references have no training: "
        "their intervals are over random halves of the texts. The CSV also has the value of each seed "
        "(_seeds) and the differences to the first row, paired by seed (_diff)."
    )


MARKS = (
    "* marks the rows that cannot be told from the best: each row against the one of best mean (lowest, "
    "highest for the sparsemax score, or nearest to human text, run by run), by a paired, one-sided "
    "t-test over their seeds (of log perplexities) with Holm's correction for the number of rows, alpha "
    f".05. Few seeds make large groups, and a row of fewer than {LEAST_SEEDS} seeds is never marked. "
    "(+x) is the distance to human text"
)
COMPETING = (
    "; there only rows compete that predict text no worse than {first} (log {quality}, paired t-test, "
    "one-sided, alpha .05 each), because noise can be as diverse as human text, too{worse}."
)


def worse(models: list[Row]) -> str:
    names = [r["name"] for r in models if r["quality_worse"]]
    return f"; not among them: {', '.join(names)}" if names else ""


def by_seed(models: list[Row], columns: tuple[Column, ...]) -> Grid:
    """A small table: the value of each seed for the main columns."""
    known = {c.key: c for c in columns}
    main = [known[next(k for k in keys if k in known)] for keys in MAIN if any(k in known for k in keys)]
    seeds = sorted({seed for r in models for seed in r["seeds"] if seed is not None})  # a file has none

    def cell(row: Row, column: Column, seed: int) -> str:
        value = dict(zip(row["seeds"], row.get(column.key + "_seeds", []))).get(seed)
        return "-" if value is None else number(value, column.form)

    head = tuple(c._replace(title=f"{c.title}, seed {seed}") for c in main for seed in seeds)
    lines = [[r["name"], *(cell(r, c, seed) for c in main for seed in seeds)] for r in models]
    return Grid.of_columns(head, lines)._replace(about=())  # the table above says it


def calibration(rows: list[Row]) -> "Figure":
    """The expected calibration error of each row of a summary, with its interval where there are several
    seeds."""
    fig, ax = figures.pyplot().subplots(figsize=(6, 0.18 * len(rows) + 0.6), layout="constrained")
    for at, row in enumerate(rows):
        half = row.get("ece_ci", math.nan)
        ax.errorbar(
            row["ece"], at, xerr=half if math.isfinite(half) else None, color="tab:blue", marker="o", ms=3
        )
    ax.set_yticks(range(len(rows)), [r["name"] for r in rows])
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_xlim(left=0)
    ax.set_xlabel("expected calibration error; 0 is calibrated")
    return fig
