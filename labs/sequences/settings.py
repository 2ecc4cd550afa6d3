"""The settings of a generated corpus: whole numbers, as text "seed=2 train=500000"."""

from dataclasses import asdict, dataclass, fields
from typing import ClassVar, Self

from common.errors import UserError

MOST = 2**32 - 1  # of a setting: more tokens than a disk may have room for


@dataclass(frozen=True)
class GeneratorSettings:
    """Everything that decides a generated corpus: a subclass has a field, with its default, for each."""

    corpus: ClassVar[str]  # whose settings they are, for messages
    least: ClassVar[dict[str, int]] = {}  # that a setting may be, where it is not 1
    most: ClassVar[dict[str, int]] = {}  # likewise, where it is not MOST

    @classmethod
    def parse(cls, text: str) -> Self:
        """The settings named in `text`, "key=value" with spaces between; the others keep their defaults.

        UserError for an unknown key, one that is there twice, and a value that is no whole number or out of
        range.
        """
        values, known = {}, [f.name for f in fields(cls)]
        for item in text.split():
            key, _, value = item.partition("=")
            if key not in known or key in values or not value.isdecimal() or len(value) > 30:
                raise UserError(
                    f"source {text!r}: {item!r} is not a setting of {cls.corpus}; "
                    f"give key=number once, with keys among {', '.join(known)}"
                )
            values[key] = int(value)
        out = cls(**values)
        for key, value in asdict(out).items():
            least, most = cls.least.get(key, 1), cls.most.get(key, MOST)
            if not least <= value <= most:
                raise UserError(f"source {text!r}: {key} = {value} must be {least} to {most}")
        return out

    def __str__(self) -> str:
        return " ".join(f"{key}={value}" for key, value in asdict(self).items())

    def unusual(self) -> list[str]:
        """Those that are not the standard ones, each "key=value"."""
        standard = str(type(self)()).split()
        return [item for item in str(self).split() if item not in standard]
