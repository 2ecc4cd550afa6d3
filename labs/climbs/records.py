"""Climbs out of ADS-B records: JSON as the `traffic` library writes it (Olive 2019), a list of records.

A record has a timestamp (ms since 1970), icao24 and callsign, and vertical_rate (ft/min) or null. What else
it has is not read.
"""

import hashlib
import json
import math
import reprlib
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from common.errors import UserError
from data.prepare.lines import open_text
from data.tokens import SPLITS
from labs.climbs.rates import LENGTH, STEP, tokens_of

COLUMNS = ("timestamp", "icao24", "callsign", "vertical_rate")
LARGEST = 1e15  # of a number: 30,000 years in ms
LONGEST_GAP = 30  # seconds without a rate that are filled in, by a straight line
CLIMBING = 300  # ft/min
LEVEL = 15  # steps, two minutes: how long a climb may pause, and how much after its end is kept
HEIGHT = 5000  # ft that a climb gains at least
HELD_OUT = 0.1  # share of the aircraft, of validation and of test
STRIDE = {"train": 1, "validation": 8, "test": 8}  # steps between the starts of two windows of a climb


class Climb(NamedTuple):
    aircraft: str  # its icao24
    rates: np.ndarray  # (n,) ft/min, means over STEP seconds
    filled: int  # of its seconds that have no rate of their own


def read_climbs(path: Path) -> list[Climb]:
    """All climbs of the records at `path`, .json or .json.gz. UserError for anything else."""
    with open_text(path) as file:
        try:
            records = json.load(file)
        except UnicodeDecodeError:
            raise  # `open_text` says it
        except (ValueError, RecursionError) as error:  # also a number of 5,000 digits
            raise UserError(f"{path} is not a whole file of JSON ({error})") from None
    if not isinstance(records, list) or not all(isinstance(r, dict) for r in records):
        raise UserError(f"{path} is not a list of ADS-B records")
    if missing := [name for name in COLUMNS if not any(name in r for r in records)]:
        raise UserError(f"{path} has no column {', '.join(missing)}")
    flights: dict[tuple[str, str], list[dict]] = defaultdict(list)
    for record in records:
        check_record(record, path)
        flights[str(record.get("icao24")), str(record.get("callsign"))].append(record)
    return [climb for key, flight in flights.items() for climb in climbs_of(key[0], flight)]


def check_record(record: dict, path: Path) -> None:
    """UserError naming `path` and what a record has in place of a number or of a name. NaN is no rate, as
    null is."""

    def is_number(value: Any) -> bool:
        unknown = value is None or (isinstance(value, float) and not math.isfinite(value))
        return unknown or (type(value) in (int, float) and abs(value) < LARGEST)

    def is_name(value: Any) -> bool:
        return not isinstance(value, (list, dict)) and str(value).isprintable()

    for name in COLUMNS:
        kind = is_number if name in ("timestamp", "vertical_rate") else is_name
        if not kind(value := record.get(name)):
            raise UserError(f"{path}: {name} = {reprlib.repr(value)}: give a number, a name or null")


def climbs_of(aircraft: str, flight: list[dict]) -> list[Climb]:
    """The climbs of a flight's records, which may have any order.

    A climb begins with a step of CLIMBING or more. It ends where LEVEL steps have none, where no rate is
    known for more than LONGEST_GAP seconds, or with the records. It gains HEIGHT at least.
    """
    time, rate = (np.array([r.get(name) for r in flight], float) for name in ("timestamp", "vertical_rate"))
    known = (np.abs(time) < LARGEST) & np.isfinite(rate)
    seconds, first = np.unique((time[known] // 1000).astype(np.int64), return_index=True)
    climbs = []
    for part in np.split(np.arange(len(seconds)), np.flatnonzero(np.diff(seconds) > LONGEST_GAP + 1) + 1):
        at = seconds[part]
        steps = (at[-1] + 1 - at[0]) // STEP if len(at) else 0
        if not steps:
            continue
        whole = at[0] + np.arange(steps * STEP)
        rates = np.interp(whole, at, rate[known][first[part]]).reshape(steps, STEP).mean(1)
        empty = ~np.isin(whole, at).reshape(steps, STEP)
        up = np.flatnonzero(rates >= CLIMBING)
        for run in np.split(up, np.flatnonzero(np.diff(up) > LEVEL) + 1):
            if len(run) and rates[run[0] : run[-1] + 1].sum() * STEP / 60 >= HEIGHT:
                steps_of = slice(run[0], run[-1] + 1 + LEVEL)
                climbs.append(Climb(aircraft, rates[steps_of], int(empty[steps_of].sum())))
    return climbs


def windows_of(climbs: list[Climb], stride: int) -> np.ndarray:
    """The tokens (n, LENGTH) of the windows of all climbs, `stride` steps after one another."""
    rows = [
        tokens_of(climb.rates[start : start + LENGTH])
        for climb in climbs
        for start in range(0, len(climb.rates) - LENGTH + 1, stride)
    ]
    return np.array(rows, np.int64).reshape(-1, LENGTH)


def splits_of(path: Path, climbs: list[Climb]) -> dict[str, np.ndarray]:
    """The windows of each split. No aircraft, and so no flight, stands in two of them: which one it stands in
    is by a hash of its icao24. UserError naming `path` for too few."""
    long = [climb for climb in climbs if len(climb.rates) >= LENGTH]
    aircraft = sorted({c.aircraft for c in long}, key=lambda name: hashlib.sha256(name.encode()).digest())
    count = max(1, round(HELD_OUT * len(aircraft)))
    if len(aircraft) < 3:
        raise UserError(f"{path} has climbs of {len(aircraft)} aircraft: too few for three splits")
    bounds = {"train": (2 * count, None), "validation": (0, count), "test": (count, 2 * count)}
    members = {split: set(aircraft[slice(*bounds[split])]) for split in SPLITS}
    return {
        split: windows_of([climb for climb in long if climb.aircraft in members[split]], STRIDE[split])
        for split in SPLITS
    }
