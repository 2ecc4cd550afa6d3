"""Measures by their names: those of the core, and `measure.py` of a lab."""

import difflib
import importlib

from measures.measure import Measure
from runtime.errors import UserError
from runtime.places import labs_with

CORE = {
    "text": ("measures.text", "TextMeasure"),
    "orders": ("measures.orders", "OrdersMeasure"),
    "decoding": ("measures.decoding", "DecodingMeasure"),
    "curve": ("measures.curve", "CurveMeasure"),
}


def find_measure(name: str) -> Measure:
    """UserError naming those that there are. A lab's is MEASURE of labs/NAME/measure.py."""
    if name in CORE:
        module, cls = CORE[name]
        return getattr(importlib.import_module(module), cls)()
    labs = labs_with("measure")
    if name not in labs:
        known = [*CORE, *labs]
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(known)}"
        raise UserError(f"measure = {name!r}: {hint}")
    return importlib.import_module(f"labs.{name}.measure").MEASURE
