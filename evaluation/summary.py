"""The table of all runs -> the table of rows: means over seeds with intervals, as Markdown, CSV and JSON."""

import json
from pathlib import Path
from typing import Any

from evaluation.columns import ALL, Column, shown
from evaluation.groups import LEAST_SEEDS, marks
from evaluation.intervals import Runs, differences, reference, summarise, with_intervals
from evaluation.tables import (
    Row,
    beside,
    csv_text,
    json_table,
    markdown,
    number,
    number_strings,
    read_texts,
    samples_file,
    scored_otherwise,
    strict,
    terminal,
)
from evaluation.texts import cut
from runtime.errors import UserError
from runtime.files import replacing
from runtime.names import REFERENCES

Groups = dict[str, dict[int, str]]  # row -> seed -> the name of its run
MAIN = ("kl_truth_model", "ppl_eps"), ("self_bleu",)  # of each the first that there is: shown seed by seed


def sheet(summary: list[Row], columns: tuple[Column, ...]) -> str:
    """The summary as CSV, with each seed's value and the differences to the first row."""
    keys = []
    for c in columns:
        compared = ("_ci", "_diff", "_diff_ci") if c.best else ()
        keys += [c.key, *(c.key + end for end in (*compared, "_seeds"))]

    def cell(row: Row, key: str) -> Any:
        value = row.get(key, "")
        return " ".join(map(str, value)) if isinstance(value, list) else value

    lines = [[r["name"], *(cell(r, k) for k in ("seeds", *keys))] for r in summary]
    return csv_text([["name", "seeds", *keys], *lines])


def note(rows: dict[str, Runs], bad: list[str], halves: int) -> str:
    """The lines under the summary: what its intervals and its stars are; `bad`: rows of worse quality."""
    seeds = max(map(len, rows.values()))
    fewer = ", ".join(f"{row}: {len(runs)}" for row, runs in rows.items() if len(runs) < seeds)
    counted = f"{seeds} seed" + "s" * (seeds > 1) + (f" ({fewer})" if fewer else "")
    return (
        f"Mean of {counted} ± half of its 95% interval: Student's t over the runs, each of which is trained "
        "and sampled with a seed of its own; the prompts are the same. Of the references, which nobody "
        f"trained, over {halves} random halves of the texts. The CSV and the JSON also have the value of "
        "each seed (_seeds) and the differences to the first row, paired by seed (_diff).\n\n"
        "* marks the rows that cannot be told from the best: each row against the one of best mean (lowest, "
        "highest for the sparsemax score, or nearest to human text, run by run), by a paired, one-sided "
        "t-test over their seeds (of log perplexities) with Holm's correction for the number of rows, alpha "
        f".05. Few seeds make large groups, and a row of fewer than {LEAST_SEEDS} seeds is never marked. "
        "(+x) is the distance to human text; there only rows compete that predict text no worse than "
        f"{next(iter(rows))} (log PPL_eps, paired t-test, one-sided, alpha .05 each), because noise can "
        "be as diverse as human text, too" + (f"; not among them: {', '.join(bad)}." if bad else ".")
    )


def by_seed(summary: list[Row], columns: tuple[Column, ...]) -> tuple[tuple[Column, ...], list[list[str]]]:
    """A small table, its columns and its cells: the value of each seed for the main columns."""
    known = {c.key: c for c in columns}
    main = [known[next(k for k in keys if k in known)] for keys in MAIN if any(k in known for k in keys)]
    models = [r for r in summary if not r.get("reference")]
    seeds = sorted({seed for r in models for seed in r["seeds"]})

    def cell(row: Row, column: Column, seed: int) -> str:
        values = dict(zip(row["seeds"], row.get(column.key + "_seeds", [])))
        value = values.get(seed)
        return "-" if value is None else number(value, column.form)

    head = tuple(c._replace(title=f"{c.title}, seed {seed}") for c in main for seed in seeds)
    return head, [[r["name"], *(cell(r, c, seed) for c in main for seed in seeds)] for r in models]


def evaluated(rows: dict[str, Row], asked: Groups) -> dict[str, Runs]:
    """The runs of each row that is asked for, without those that could not be evaluated."""
    out = {}
    for row, names in asked.items():
        there = {seed: rows[name] for seed, name in names.items() if name in rows}
        if sound := {seed: r for seed, r in there.items() if "problem" not in r}:
            out[row] = sound
    return out


def each(rows: dict[str, Row], key: str) -> list[Any]:
    """The values of `key` in the rows, each once."""
    found = {json.dumps(r[key], sort_keys=True) for r in rows.values() if key in r}
    return [json.loads(text) for text in sorted(found)]


def write_summary(out: Path, per_run: Path, asked: Groups, settings: dict[str, Any], halves: int) -> str:
    """Writes out.md, .csv and .json from the table of all runs; its text for a terminal.

    asked     the runs of each row; those that the table has not, or that could not be evaluated, are left out
    settings  of the table, for the JSON
    halves    random halves of the references' texts, for their intervals
    """
    table = json.loads(beside(per_run, ".json").read_text(encoding="utf-8"))
    rows = {r["name"]: number_strings(r) for r in table["rows"]}
    columns = tuple(c for c in ALL if c.key != "step" and any(c.key in r for r in rows.values()))
    runs = evaluated(rows, asked)
    if not runs:
        raise UserError(f"no run of this table could be evaluated, see {per_run}.md")

    base, words = next(iter(runs.values())), table["settings"].get("words", 0)
    marked = marks(runs, rows["human"], columns)
    summary: list[Row] = [
        {**summarise(row, of_seed, columns), **differences(of_seed, base, columns), **marked[row]}
        for row, of_seed in runs.items()
    ]
    for name in REFERENCES:
        texts = [cut(t, words) for t in read_texts(samples_file(per_run, name))]
        summary.append(reference(rows[name], texts, columns, halves))

    seen = shown(columns, summary)
    body, seeds = with_intervals(summary, seen), by_seed(summary, columns)
    used = [r for of_seed in runs.values() for r in of_seed.values()]
    said = note(runs, [row for row, its in marked.items() if its["quality_worse"]], halves)
    # of the columns, behind the table
    _, _, explained = beside(per_run, ".md").read_text(encoding="utf-8").partition("\n\n")
    head = {
        "settings": {"table": settings, "evaluation": table["settings"]},
        "commits": each(rows, "commit"),
        "versions": each(rows, "versions"),
    }
    content = {
        ".md": f"{markdown(seen, body)}\n\n{said}\n\n{markdown(*seeds)}\n\n{explained}",
        ".csv": sheet(summary, columns),
        ".json": json_table(head, [strict(r) for r in summary]),
    }
    for end, text in content.items():
        with replacing(beside(out, end)) as f:
            f.write(text.encode())
    return f"{terminal(seen, body)}\n\n{said}\n\n{terminal(*seeds)}\n" + "\n".join(scored_otherwise(used))
