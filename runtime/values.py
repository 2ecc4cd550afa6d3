"""Values of flags that several commands take, checked without importing torch, which takes seconds."""

import ast
import sys
from collections.abc import Iterable

from runtime.errors import UserError
from runtime.places import CODE

DTYPES = ("float32", "bfloat16", "float16")  # of matrix products
CHOICES = "'float32', 'bfloat16' or 'float16'"
OPTIMIZERS = ("adamw", "muon", "adam", "sgd")  # of train.py


def registered(module: str, registry: str) -> list[str]:
    """The names in a dict of one of our modules, such as HEADS of heads.

    They are read from its source where it is not imported yet.
    """
    if module in sys.modules:
        return list(getattr(sys.modules[module], registry))
    path = CODE / module
    source = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        match node:
            case ast.AnnAssign(target=ast.Name(name), value=ast.Dict(keys=keys)) if name == registry:
                return [ast.literal_eval(key) for key in keys if key]
    raise LookupError(f"{module} has no dict {registry}")


def check_one_of(key: str, value: str, known: Iterable[str]) -> None:
    """UserError if `value` is none of the `known` names."""
    if value not in known:
        raise UserError(f"{key} = {value!r}: use one of {', '.join(known)}")


def check_head(name: str) -> None:
    """UserError if there is no such head."""
    known = registered("heads", "HEADS")
    if name not in known:
        raise UserError(f"unknown head {name!r}; known: {', '.join(known)}")


def check_dtype(name: str) -> None:
    """UserError if no matrix product is in this dtype."""
    if name not in ("auto", *DTYPES):
        raise UserError(f"dtype = {name!r}: use 'auto', {CHOICES}")


def check_sampling(temperature: float, top_k: int, top_p: float) -> None:
    """UserError naming the setting that cannot be sampled with."""
    if not 0 <= temperature < float("inf"):
        raise UserError(f"temperature = {temperature}: must be 0 (greedy) or positive")
    if top_k < 0:
        raise UserError(f"top_k = {top_k}: must be 0 (off) or positive")
    if not 0 < top_p <= 1:
        raise UserError(f"top_p = {top_p}: must lie in (0, 1]")


def check_cfg(scale: float) -> None:
    """UserError if it is no scale of classifier-free guidance."""
    if not 1 <= scale < float("inf"):
        raise UserError(f"cfg = {scale}: must be 1, no guidance, or more")
