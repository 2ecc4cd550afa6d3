"""The one store of rows: a file of JSON lines, results/NAME.jsonl, with a line for each (run, measure).

Tables, figures and pages are views of it. A view can be deleted and is never read back.

A row says of which measure it is, and of which `definition` of it: a number that the measure's author raises
when its numbers change their meaning. It has the run's `row`, `overlay` and `seed` as fields, the run's whole
configuration (`training`), the SHA-256 of its weights, and the `settings` of the measure.

Runs of a table differ in few settings. So a line of the file has the values that most rows of a measure
share, of the entries that all of them have; rows of a commit with other settings have another such line. A
row names that line and says what differs. Read by `Store`, it is whole.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.config import Name, RowName, checked
from common.errors import reading
from common.files import beside, check_writable, lock_of, locked, read_text, replacing

Row = dict[str, Any]
REQUIRED = ("measure", "name", "settings", "definition")
FIELDS = {"measure": str, "name": Name, "row": RowName, "settings": dict, "definition": int}
FIELDS |= {"training": dict, "problem": str}
SHARED = ("settings", "training", "versions")  # the parts of a row whose entries are said once


@dataclass(frozen=True)
class Store:
    """The rows of one file, or of none (`path` None), which keeps nothing. Several processes may write it."""

    path: Path | None

    @classmethod
    def beside(cls, out: str | Path | None) -> "Store":
        """OUT.jsonl. OSError if it cannot be written, before the work whose rows it is to hold."""
        if not out:
            return cls(None)
        path = beside(Path(out), ".jsonl")
        check_writable(path)
        return cls(path)

    def rows(self, measure: str) -> list[Row]:
        """The rows of a measure, in the order in which they came. UserError if the file is none of ours."""
        with reading(self.path or ""):
            return [_decoded(row) for row in self._read().values() if row["measure"] == measure]

    def measures(self) -> list[str]:
        """Those that it has rows of, in the order in which they came."""
        return list(dict.fromkeys(row["measure"] for row in self._read().values()))

    def put(self, rows: Iterable[Row], check: Callable[[], object] = lambda: None) -> None:
        """Adds rows behind the others; one of the same measure and name takes the place of the former one.

        check  asked while the file is locked: where it refuses what stands there by now, nothing is added
        """
        if self.path is None:
            return
        with locked(lock_of(self.path)):
            check()
            self._write(self._read() | keyed(map(_encoded, rows)))

    def order(self, measure: str, names: Iterable[str]) -> None:
        """Moves the measure's rows of these names to the front, in this order."""
        if self.path is None:
            return
        with locked(lock_of(self.path)):
            rows = self._read()
            self._write({key: rows[key] for name in names if (key := (measure, name)) in rows} | rows)

    def _write(self, rows: dict[tuple[str, str], Row]) -> None:
        assert self.path is not None
        with replacing(self.path) as file:
            for line in folded([*rows.values()]):
                file.write(f"{_json(line)}\n".encode())

    def _read(self) -> dict[tuple[str, str], Row]:
        if self.path is None or not self.path.is_file():
            return {}
        with reading(self.path):
            # not splitlines(), which also splits at a U+2028 within a text
            lines = [json.loads(line) for line in read_text(self.path).split("\n") if line]
            return keyed(unfolded(lines))


def keyed(rows: Iterable[Row]) -> dict[tuple[str, str], Row]:
    """`rows` as JSON has them, by what one of them is: the same name under the same measure. UserError for
    what can be no row of ours."""
    out = {}
    for row in rows:
        checked(row, FIELDS, REQUIRED, more=True)
        out[row["measure"], row["name"]] = row
    return out


def folded(rows: list[Row]) -> list[Row]:
    """The lines of a file: what most `rows` of one kind have, and of each row what differs."""
    commons: dict[str, Row] = {}
    of: dict[int, Row] = {}  # the common line of each row
    for measure in dict.fromkeys(row["measure"] for row in rows):
        rest = [row for row in rows if row["measure"] == measure]
        while rest:
            alike = _alike(rest)
            if common := _common(alike):
                common = {"common": hashlib.sha256(_json(common).encode()).hexdigest()[:12], **common}
                commons[common["common"]] = common
            of |= {id(row): common for row in alike}
            rest = [row for row in rest if id(row) not in of]
    return [*commons.values(), *(_less(row, of[id(row)]) for row in rows)]


def _alike(rows: list[Row]) -> list[Row]:
    """Those that have each setting that most of `rows` have: rows of another commit may lack some."""
    count = Counter(name for row in rows for name in row.get("training", ()))
    usual = {name for name, k in count.items() if 2 * k > len(rows)}
    return [row for row in rows if usual <= set(row.get("training", usual))] or rows


def _common(rows: list[Row]) -> Row:
    """The values that more than half of two or more `rows` with the part share, of the entries that all of
    these have."""
    common = {}
    for key in SHARED:
        parts = [row[key] for row in rows if key in row]
        if len(parts) > 1:
            names = [name for name in parts[0] if all(name in part for part in parts)]
            usual = {n: Counter(_json(part[n]) for part in parts).most_common(1)[0] for n in names}
            most = {n: value for n, (value, count) in usual.items() if 2 * count > len(parts)}
            common[key] = {n: json.loads(value) for n, value in most.items()}
    return {key: part for key, part in common.items() if part}


def _less(row: Row, common: Row) -> Row:
    """`row` without the entries that are the same in `common`; it names that line."""
    parts = {
        key: {n: v for n, v in row[key].items() if n not in common[key] or _json(v) != _json(common[key][n])}
        for key in SHARED
        if key in row and key in common
    }
    return row | parts | ({"common": common["common"]} if common else {})


def unfolded(lines: list[Row]) -> list[Row]:
    """The rows of `folded` lines, whole. KeyError for a row whose common line is not there."""
    commons = {line["common"]: line for line in lines if "measure" not in line}
    rows = []
    for row in lines:
        if "measure" not in row:
            continue
        if name := row.pop("common", None):
            common = commons[name]
            row |= {key: common[key] | row[key] for key in SHARED if key in row and key in common}
        rows.append(row)
    return rows


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _encoded(value: Any) -> Any:
    """`value` as JSON has it: a nan or an inf, which JSON has not, is {"float": "nan"}."""
    if isinstance(value, dict):
        return {key: _encoded(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_encoded(v) for v in value]
    return {"float": str(value)} if isinstance(value, float) and not math.isfinite(value) else value


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(v) for v in value]
    if not isinstance(value, dict):
        return value
    return float(value["float"]) if value.keys() == {"float"} else {k: _decoded(v) for k, v in value.items()}
