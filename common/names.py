"""Names of rows and runs: what they may hold, and the files that the samples of a row go to.

A name comes from a config file, a flag, or the config.json of a checkpoint that somebody else wrote. It
becomes part of paths, a cell of tables and a title in figures. So it is checked where it is read.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from common.errors import UserError
from common.values import AfterValidator

REFERENCES = ("human", "unigram noise", "loop")  # the rows of a table that no model wrote
RENAMED = "give one another, as in other=RUN"  # what to do where two rows of a table have one name
LONGEST = 150  # bytes; with its endings, a file's name may have 255


def check_name(name: object) -> str:
    """`name`, if a row or a table can have it: no path, no flag, and nothing that a spreadsheet computes."""
    fits = isinstance(name, str) and 0 < len(name.encode(errors="replace")) <= LONGEST and name.isprintable()
    if not isinstance(name, str) or not fits or re.search(r"^[ .=+\-@~']|[/\\|]| $", name):
        raise UserError(f"name = {ascii(name)[:60]} is none: use letters, digits, '.', '_' and '-'")
    return name


def check_row_name(name: object) -> str:
    """`name`, if a model's row can have it: `check_name`'s rules, and not a reference row's name or file."""
    row = check_name(name)
    check_apart([*REFERENCES, row])
    return row


def _of_row(name: str) -> str:
    return name and check_name(name)


RowName = Annotated[str, AfterValidator(_of_row)]  # "" where there is none


def named_path(argument: str) -> tuple[str, Path]:
    """(name, path) of NAME=PATH, ("", path) of PATH. ValueError for a name that no row can have."""
    name, _, given = argument.partition("=")
    whole = Path(os.path.expanduser(argument))
    if not given or "/" in name or whole.exists():  # a path with a "=" in it
        return "", whole
    return check_row_name(name), Path(os.path.expanduser(given))


def file_stem(name: str) -> str:
    """Name, without its ending, of the file that a row's samples go to."""
    return name.replace(" ", "_")


def check_apart(names: Iterable[str], remedy: str = "give each run its own --name") -> None:
    """ValueError with the `remedy` if two of `names` are the same or share a file.

    Names that differ in upper and lower case alone share a file on some disks.
    """
    seen: dict[str, str] = {}
    for name in names:
        key = file_stem(name).casefold()
        if key in seen:
            both = f"the rows {seen[key]!r} and {name!r} would share a file"
            if seen[key] == name:
                both = f"two rows have the name {name!r}"
            raise UserError(f"{both}: {remedy} (a table has the rows {', '.join(REFERENCES)} by itself)")
        seen[key] = name
