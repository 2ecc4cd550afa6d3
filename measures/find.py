"""Measures by their names: those of the core, and `measure.py` of a lab."""

import importlib

from measures.measure import Measure
from runtime.errors import UserError
from runtime.places import labs_with

CORE = {
    "text": ("measures.text", "TextMeasure"),
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
        raise UserError(f"measure = {name!r}: use one of {', '.join([*CORE, *labs])}")
    return importlib.import_module(f"labs.{name}.measure").MEASURE
