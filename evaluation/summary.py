"""The table of all runs -> the table of rows: means over seeds with intervals, as Markdown, CSV and JSON."""

import json
from pathlib import Path
from typing import Any

from evaluation.columns import HONEST, TRUTH, Column
from evaluation.intervals import TEXT_METRICS, differences, summarise, with_intervals
from evaluation.tables import (
    Row,
    beside,
    csv_text,
    json_table,
    markdown,
    number_strings,
    read_texts,
    samples_file,
    strict,
    terminal,
)
from runtime.errors import UserError
from runtime.files import replacing
from runtime.names import REFERENCES

Groups = dict[str, dict[int, str]]  # row -> seed -> the name of its run


def sheet(summary: list[Row], columns: tuple[Column, ...]) -> str:
    """The summary as CSV, with the differences to the first row."""
    keys = []
    for c in columns:
        keys += [c.key, c.key + "_ci"]
        if c.key not in TEXT_METRICS:
            keys += [c.key + "_diff", c.key + "_diff_ci"]
    return csv_text([["name", *keys], *([r["name"], *(r.get(k, "") for k in keys)] for r in summary)])


def note(groups: Groups, halves: int) -> str:
    """The line under the summary: what its intervals are of."""
    seeds = max(map(len, groups.values()))
    fewer = ", ".join(f"{row}: {len(runs)}" for row, runs in groups.items() if len(runs) < seeds)
    counted = f"{seeds} seed" + "s" * (seeds > 1) + (f" ({fewer})" if fewer else "")
    return (
        f"Mean of {counted} ± half of its 95% interval: Student's t over the seeds; "
        f"for the metrics of texts ({', '.join(TEXT_METRICS)}) over {halves} random halves of the texts. "
        "The CSV and the JSON also have the differences to the first row, paired by seed (_diff). "
        "(+x) is the distance to human text; * is nearest to human, or lowest; "
        "for the sparsemax score, highest."
    )


def each(rows: dict[str, Row], key: str) -> list[Any]:
    """The values of `key` in the rows, each once."""
    found = {json.dumps(r[key], sort_keys=True) for r in rows.values() if key in r}
    return [json.loads(text) for text in sorted(found)]


def write_summary(out: Path, per_run: Path, asked: Groups, settings: dict[str, Any], halves: int) -> str:
    """Writes out.md, .csv and .json from the table of all runs; its text for a terminal.

    asked     the runs of each row; those that the table has not, or that could not be evaluated, are left out
    settings  of the table, for the JSON
    halves    random halves of the texts, for the intervals
    """
    table = json.loads(beside(per_run, ".json").read_text(encoding="utf-8"))
    rows = {r["name"]: number_strings(r) for r in table["rows"]}
    shown = [c for c in HONEST + TRUTH if c.key != "step"]
    columns = tuple(c for c in shown if any(c.key in r for r in rows.values()))
    groups = {}
    for row, runs in asked.items():
        sound = {seed: name for seed, name in runs.items() if name in rows and "problem" not in rows[name]}
        if sound:
            groups[row] = sound
    if not groups:
        raise UserError(f"no run of this table could be evaluated, see {per_run}.md")

    def summary_of(row: str, names: list[str]) -> Row:
        texts = [read_texts(samples_file(per_run, name)) for name in names]
        return summarise(row, [rows[name] for name in names], texts, columns, halves)

    summary = []
    base = {seed: rows[name] for seed, name in next(iter(groups.values())).items()}
    for row, runs in groups.items():
        of_seed = {seed: rows[name] for seed, name in runs.items()}
        summary.append(summary_of(row, list(runs.values())) | differences(of_seed, base, columns))
    summary += [summary_of(name, [name]) for name in REFERENCES]

    said, body = note(groups, halves), with_intervals(summary, columns)
    # of the columns, behind the table
    _, _, explained = beside(per_run, ".md").read_text(encoding="utf-8").partition("\n\n")
    head = {
        "settings": {"table": settings, "evaluation": table["settings"]},
        "commits": each(rows, "commit"),
        "versions": each(rows, "versions"),
    }
    content = {
        ".md": f"{markdown(columns, body)}\n\n{said}\n\n{explained}",
        ".csv": sheet(summary, columns),
        ".json": json_table(head, [strict(r) for r in summary]),
    }
    for end, text in content.items():
        with replacing(beside(out, end)) as f:
            f.write(text.encode())
    return f"{terminal(columns, body)}\n\n{said}"
