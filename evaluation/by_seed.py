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
from evaluation.provenance import commit, scoring_code
from evaluation.rows import Entry, public, unchanged
from evaluation.settings import other_settings
from evaluation.tables import Row, beside, json_table, number_strings, strict
from runtime.checkpoint import Degenerate, weights_digest
from runtime.errors import UserError
from runtime.files import foreign, lock_of, locked, read_json, replacing


def name_of(entry: Entry) -> str:
    """The row of a run: its name without its seed."""
    return entry.name.removesuffix(f"-{entry.ckpt.config['seed']}")


def grouped(rows: list[Row]) -> dict[str, list[Row]]:
    """The runs of each configuration, without those that could not be measured."""
    out: dict[str, list[Row]] = defaultdict(list)
    for r in rows:
        if "problem" not in r:
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


def origin(entry: Entry, code: tuple[str, ...]) -> Row:
    """What a row says of its run, whatever is measured of it."""
    ckpt = entry.ckpt
    row: Row = {"name": entry.name, "row": name_of(entry), "seed": ckpt.config["seed"]}
    row |= {"step": ckpt.progress["step"], "weights_sha256": weights_digest(ckpt.path)}
    return row | {"commit": commit(), "code": scoring_code(*code), "training": public(ckpt.config)}


def rows_of(
    runs: list[Entry],
    kept: dict[str, Row],
    code: tuple[str, ...],
    measure: Callable[[Entry], Row],
    written: Callable[[dict[str, Row]], list[Row]],
    out: Path | None,
) -> list[Row]:
    """The row of each run, kept where the same `code` has scored the same weights, or measured now; then the
    other rows that the table has. A run whose numbers are none has a "problem" instead of them.

    `written` puts the rows so far into the table after each, so that what is stopped goes on from there, and
    returns all rows of it.
    """
    rows: dict[str, Row] = {}
    for entry in runs:
        had = kept.get(entry.name)
        if unchanged(had, entry.ckpt, weights_digest(entry.ckpt.path), code):
            print(f"{entry.name}: kept from {out}.json", file=sys.stderr)
            rows[entry.name] = kept[entry.name]
        else:
            rows[entry.name] = origin(entry, code)
            try:
                rows[entry.name] |= measure(entry)
            except Degenerate as e:
                rows[entry.name]["problem"] = e.what
            written(rows)
    return written(rows)


def update(
    out: Path, content: dict[str, Any], rows: dict[str, Row], program: str, text: Callable[[list[Row]], str]
) -> list[Row]:
    """Writes OUT.json and OUT.md with `rows` before those that the table holds. All its rows.

    Another process may have added some since it was read.
    """
    with locked(lock_of(out)):
        others = {n: r for n, r in kept_rows(out, content["settings"], program).items() if n not in rows}
        table = [*rows.values(), *others.values()]
        with replacing(beside(out, ".json")) as f:
            f.write(json_table(content, [strict(r) for r in table]).encode())
        with replacing(beside(out, ".md")) as f:
            f.write((text(table) + "\n").encode())
    return table


def problems(rows: list[Row]) -> list[str]:
    """The line that names the runs which could not be measured; none where there are no such."""
    bad = [f"{r['name']} ({r['problem']})" for r in rows if "problem" in r]
    return [f"Could not be measured, and in no mean: {'; '.join(bad)}."] if bad else []
