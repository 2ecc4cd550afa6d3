"""Names of rows: which there can be, and the files that the samples of a row go to.

A name comes from a config file, a flag, or the config.json of a checkpoint that somebody else wrote. It
becomes part of paths, a cell of tables and a title in figures.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from common.config import Name, checked
from common.errors import UserError

REFERENCES = ("human", "unigram noise", "loop")  # the rows of a table that no model wrote
RENAMED = "give one another, as in other=RUN"  # what to do where two rows of a table have one name


def check_name(name: Any) -> str:
    """`name`, if a row can have it. UserError for one that cannot be a part of paths."""
    return checked({"name": name}, {"name": Name})["name"]


def named_path(argument: str) -> tuple[str, Path]:
    """(name, path) of NAME=PATH, ("", path) of PATH. ValueError for a name that no row can have."""
    name, _, given = argument.partition("=")
    whole = Path(os.path.expanduser(argument))
    if not given or "/" in name or whole.exists():  # a path with a "=" in it
        return "", whole
    return check_name(name), Path(os.path.expanduser(given))


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
