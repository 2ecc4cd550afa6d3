"""Tables of rows by configuration: means over the runs with different seeds, with 95% intervals. What
eval_orders.py and eval_images.py share."""

import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tabulate import tabulate

from evaluation.intervals import student_interval
from evaluation.provenance import scoring_code
from evaluation.rows import Entry
from evaluation.settings import other_settings
from evaluation.tables import Row, beside, json_table, number_strings, strict
from runtime.checkpoint import weights_digest
from runtime.errors import UserError
from runtime.files import foreign, read_json, replacing


def name_of(entry: Entry) -> str:
    """The row of a run: its name without its seed."""
    return entry.name.removesuffix(f"-{entry.ckpt.config['seed']}")


def grouped(rows: list[Row]) -> dict[str, list[Row]]:
    """The runs of each configuration."""
    out: dict[str, list[Row]] = defaultdict(list)
    for r in rows:
        out[r["row"]].append(r)
    return out


def mean(values: list[float]) -> str:
    """With its 95% interval over seeds, where there are several: two digits of it, and as many places of the
    mean."""
    if not values:
        return "-"
    middle, half = statistics.fmean(values), student_interval(values)
    if not math.isfinite(half) or half <= 1e-9 * abs(middle):  # one value, but for the last digits
        return f"{middle:.4g}"
    places = max(0, 1 - math.floor(math.log10(half)))
    return f"{middle:.{places}f} ± {half:.{places}f}"


def table(head: list[str], lines: list[list[str]]) -> str:
    return tabulate(lines, head, tablefmt="github", disable_numparse=True)


def kept_rows(out: Path | None, settings: dict[str, Any], program: str) -> dict[str, Row]:
    """Rows of an earlier table of the same settings, by name. UserError if it had others."""
    if out is None or not beside(out, ".json").is_file():
        return {}
    path = beside(out, ".json")
    with foreign(path, f"a table of {program}: give another --out, or move it away"):
        table = read_json(path, strict=True)
        had = dict(table["settings"])
        known = {str(r["name"]): number_strings(dict(r)) for r in table["rows"]}
        if odd := [name for name, r in known.items() if not {"row", "weights_sha256", "code"} <= r.keys()]:
            raise KeyError(odd[0])
    if odd := other_settings(had, settings):
        raise UserError(
            f"{path} holds rows of other settings ({'; '.join(odd)}): use those settings or another --out"
        )
    return known


def rows_of(
    runs: list[Entry],
    kept: dict[str, Row],
    code: tuple[str, ...],
    measure: Callable[[Entry], Row],
    done: Callable[[list[Row]], None],
    out: Path | None,
) -> list[Row]:
    """The row of each run, kept where the same `code` has scored the same weights, or measured now; then the
    other rows that the table has. `done` with all of them so far after each, so that what is stopped goes on
    from there."""

    def same(entry: Entry) -> bool:
        row, digest = kept.get(entry.name, {}), weights_digest(entry.ckpt.path)
        return row.get("weights_sha256") == digest and row["code"] == scoring_code(*code)

    rows = {entry.name: kept[entry.name] if same(entry) else None for entry in runs}
    rows |= {name: row for name, row in kept.items() if name not in rows}

    def so_far() -> list[Row]:
        return [row for row in rows.values() if row]

    for entry in runs:
        if rows[entry.name]:
            print(f"{entry.name}: kept from {out}.json", file=sys.stderr)
        else:
            rows[entry.name] = measure(entry)
            done(so_far())
    done(so_far())
    return so_far()


def write(out: Path, content: dict[str, Any], rows: list[Row], text: str) -> None:
    """OUT.json with the rows and OUT.md with the text."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(beside(out, ".json")) as f:
        f.write(json_table(content, [strict(r) for r in rows]).encode())
    with replacing(beside(out, ".md")) as f:
        f.write((text + "\n").encode())
