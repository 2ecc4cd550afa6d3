"""The one store of rows: a file of JSON lines, results/NAME.jsonl, with a line for each (run, measure).

Tables, figures and pages are views of it. A view can be deleted and is never read back.

A row says of which measure it is, and of which `definition` of it: a number that the measure's author raises
when its numbers change their meaning. It has the run's `row`, `overlay` and `seed` as fields, the run's whole
configuration (`training`), the SHA-256 of its weights, and the `settings` of the measure.

Runs of a table differ in few settings. So each measure has a line with the values that most of its rows
share, of the entries that all of them have. A row names that line and says what differs. Read by `Store`, it
is whole.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.config import Name, RowName, checked
from common.errors import reading
from common.files import beside, check_writable, lock_of, locked, read_text, replacing

Row = dict[str, Any]
REQUIRED = {"measure": str, "name": Name, "settings": dict, "definition": int}
FIELDS = REQUIRED | {"row": RowName, "problem": str}
SHARED = ("settings", "training", "versions")  # the parts of a row whose entries are said once
ONCE = ("command", "commit")  # and those that are said once as they are


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
        return [row for row in self._read().values() if row["measure"] == measure]

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
            self._write(self._read() | keyed(rows))

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
                file.write(f"{_dumps(line)}\n".encode())

    def _read(self) -> dict[tuple[str, str], Row]:
        if self.path is None or not self.path.is_file():
            return {}
        with reading(self.path):
            # not splitlines(), which also splits at a U+2028 within a text
            return keyed(unfolded([_loads(line) for line in read_text(self.path).split("\n") if line]))


def keyed(rows: Iterable[Row]) -> dict[tuple[str, str], Row]:
    """Rows by what one of them is: the same name under the same measure. UserError for what can be no row."""
    out = {}
    for row in rows:
        checked({key: row[key] for key in FIELDS if key in row}, FIELDS, REQUIRED)
        out[row["measure"], row["name"]] = row
    return out


# -----------------------------------------------------------------------------
# The lines of a file


def folded(rows: list[Row]) -> list[Row]:
    """Of each measure what most of its rows have, then of each row what differs."""
    commons: dict[str, Row] = {}
    for measure in dict.fromkeys(row["measure"] for row in rows):
        common: Row = {}
        its = [row for row in rows if row["measure"] == measure]
        for key in ONCE:
            values = Counter(row[key] for row in its if key in row)
            if values.total() > 1:
                common[key] = values.most_common(1)[0][0]
        for key in SHARED:
            parts = [row[key] for row in its if key in row]
            for name in parts[0] if len(parts) > 1 else ():
                if all(name in part for part in parts):
                    value, count = Counter(_dumps(part[name]) for part in parts).most_common(1)[0]
                    if 2 * count > len(parts):
                        common.setdefault(key, {})[name] = _loads(value)
        if common:
            commons[measure] = {"common": hashlib.sha256(_dumps(common).encode()).hexdigest()[:12], **common}

    lines = []
    for row in rows:
        common = commons.get(row["measure"], {})
        named = {"common": common["common"]} if common else {}
        differs = {
            key: {n: v for n, v in row[key].items() if n not in part or _dumps(v) != _dumps(part[n])}
            for key, part in common.items()
            if key in SHARED and key in row
        }
        once = {key: row.get(key) for key in ONCE if key in common}  # None: not even what is said once
        same = {key for key, value in once.items() if value == common[key]}
        lines.append({k: v for k, v in (row | differs | once | named).items() if k not in same})
    return [*commons.values(), *lines]


def unfolded(lines: list[Row]) -> Iterator[Row]:
    """The rows of `folded` lines, whole. KeyError for a row whose common line is not there."""
    commons = {line["common"]: line for line in lines if "measure" not in line}
    for row in lines:
        if "measure" in row:
            common = commons[row.pop("common")] if "common" in row else {}
            once = {key: row.get(key, common[key]) for key in ONCE if key in common}
            row = {k: v for k, v in (row | once).items() if k not in once or v is not None}
            yield row | {key: common.get(key, {}) | row[key] for key in SHARED if key in row}


def _dumps(value: Any) -> str:
    return json.dumps(_encoded(value), separators=(",", ":"), ensure_ascii=False)


def _encoded(value: Any) -> Any:
    """`value` as JSON has it: a nan or an inf, which JSON has not, is {"float": "nan"}."""
    if isinstance(value, dict):
        return {key: _encoded(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_encoded(v) for v in value]
    return {"float": str(value)} if isinstance(value, float) and not math.isfinite(value) else value


def _loads(text: str) -> Any:
    """What `_dumps` wrote. ValueError for a NaN or an Infinity as other programs write it."""
    decode = lambda d: float(d["float"]) if d.keys() == {"float"} else d
    return json.loads(text, object_hook=decode, parse_constant=int)
