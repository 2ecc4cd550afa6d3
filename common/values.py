"""Types of the fields of configurations, and the check of a value against one. Without torch, whose import
takes seconds."""

import functools
import sys
from typing import Annotated, Any, Literal

from common.errors import CONTROL, UserError
from common.places import EXTRAS, missing, not_installed

try:
    from pydantic import AfterValidator as AfterValidator
    from pydantic import Field, TypeAdapter, ValidationError
except ModuleNotFoundError:  # the first package that a command imports
    sys.exit(f"error: {not_installed(*missing(*EXTRAS['']))}")

LARGEST = 1e30  # of a float: float32 holds it, and many times as much


def _rising(limits: list[float]) -> list[float]:
    if limits != sorted({*limits}):
        raise ValueError("give [lowest, highest]")
    return limits


Text = Annotated[str, Field(description="not a path")]  # in a plain str "~/" is the home folder
Positive = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Draws = Annotated[int, Field(ge=1, le=100)]  # of weights, each as large as the embedding
AtLeast2 = Annotated[int, Field(ge=2)]
AtMost100 = Annotated[int, Field(ge=1, le=100)]
Share = Annotated[float, Field(ge=0, le=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]  # a share that is not 0, such as top_p's mass
Seed = Annotated[int, Field(ge=0, lt=2**63)]  # torch takes none from there on, numpy none below 0
Above0 = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Limits = Annotated[list[Above0], Field(min_length=2, max_length=2), AfterValidator(_rising)]
Space = dict[str, Limits]  # setting -> what is searched
Dtype = Literal["auto", "float32", "bfloat16", "float16"]  # of matrix products

OUR_WORDS = {  # for pydantic's
    "Input should": "must",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "Value error, ": "",
}
adapter = functools.cache(TypeAdapter)


def typed(key: str, value: Any, kind: Any, largest: float = LARGEST) -> Any:
    """`value` as a field of this kind has it: an int as a float where that is asked for, nothing else is
    converted. UserError that names `key`, if the field cannot have it, or if it holds a float above
    `largest`."""
    if reason := unusable(value, largest):
        raise UserError(f"{key} {reason}")
    try:
        return adapter(kind).validate_python(value, strict=True)
    except ValidationError as error:
        message = error.errors(include_url=False)[0]["msg"]
        for words, ours in OUR_WORDS.items():
            message = message.replace(words, ours)
        raise UserError(f"{key} = {value!r}: {message}") from None


def unusable(value: Any, largest: float = LARGEST) -> str:
    """Why no setting of a command and no JSON file of ours can be `value`, or hold it; "" if they can."""
    if isinstance(value, str) and (match := CONTROL.search(value)):
        return f"holds the character {match[0]!a}"
    if isinstance(value, int) and abs(value) > (2**63 if largest <= LARGEST else largest):
        return "must lie between -2**63 and 2**63"
    if isinstance(value, float) and not abs(value) <= largest:
        return f"must lie between -{largest:g} and {largest:g}"
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    held = value if isinstance(value, (list, tuple, set)) else ()
    return next(filter(None, (unusable(v, largest) for v in held)), "")
