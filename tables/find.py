"""Measures by their names: those of the core, and MEASURE of a lab's measure.py."""

import importlib
from types import ModuleType

from common.errors import UserError
from common.places import modules
from tables.columns import Column
from tables.measure import Measure


def find_measure(name: str) -> Measure:
    """UserError naming those that there are."""
    known = {"text": "tables.text", "paper": "tables.paper", "curve": "tables.curve", **modules("measure")}
    if name not in known:
        raise UserError(f"measure = {name!r}: use one of {', '.join(known)}")
    return importlib.import_module(known[name]).MEASURE


def scorers() -> ModuleType:
    """labs/LAB/scorer.py, which judges texts by a model: digest(path), judge(path, data, settings, device).
    UserError if no lab has one."""
    for module in modules("scorer").values():
        return importlib.import_module(module)
    raise UserError("scorer: labs/scorers is not there")


def lab_columns() -> list[Column]:
    """COLUMNS of labs/LAB/columns.py: those of rows that a scorer, or an earlier version, measured."""
    return [c for module in modules("columns").values() for c in importlib.import_module(module).COLUMNS]
