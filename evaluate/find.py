"""Measures by their names: those of the core, and MEASURE of a lab's measure.py."""

import importlib
from pathlib import Path
from types import ModuleType

from common.errors import UserError
from common.places import CODE, labs_with
from evaluate.measure import Measure

CORE = {"text": ("evaluate.text", "TextMeasure"), "curve": ("evaluate.curve", "CurveMeasure")}


def of_labs() -> dict[str, Path]:
    """The file of each lab's measure, by the name of its folder: labs/LAB or labs/LAB/NAME."""
    return {path.parent.name: path for path in sorted(CODE.glob("labs/**/measure.py"))}


def find_measure(name: str) -> Measure:
    """UserError naming those that there are."""
    if name in CORE:
        module, cls = CORE[name]
        return getattr(importlib.import_module(module), cls)()
    labs = of_labs()
    if name not in labs:
        raise UserError(f"measure = {name!r}: use one of {', '.join([*CORE, *labs])}")
    module = ".".join(labs[name].relative_to(CODE).with_suffix("").parts)
    return importlib.import_module(module).MEASURE


def scorers() -> ModuleType:
    """labs/LAB/scorer.py, which judges texts by a model: digest(path), judge(path, data, settings, device)
    and COLUMNS. UserError if no lab has one."""
    for lab in labs_with("scorer"):
        return importlib.import_module(f"labs.{lab}.scorer")
    raise UserError("scorer: labs/scorers is not there")
