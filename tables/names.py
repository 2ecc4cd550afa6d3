"""Names of rows: which there can be, and the files that the samples of a row go to.

A name comes from a config file, a flag, or the config.json of a checkpoint that somebody else wrote. It
becomes part of paths, a cell of tables and a title in figures.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from common.errors import UserError

REFERENCES = ("human", "unigram noise", "loop")  # the rows of a table that no model wrote


def named_path(argument: str) -> tuple[str, Path]:
    """(name, path) of NAME=PATH, ("", path) of PATH."""
    name, _, given = argument.partition("=")
    whole = Path(os.path.expanduser(argument))
    if not given or "/" in name or whole.exists():  # a path with a "=" in it
        return "", whole
    return name, Path(os.path.expanduser(given))


def file_stem(name: str) -> str:
    """Name, without its ending, of the file that a row's samples go to."""
    return name.replace(" ", "_")


def check_apart(names: Iterable[str]) -> None:
    """UserError if two of `names` are the same or share a file.

    Names that differ in upper and lower case alone share a file on some disks.
    """
    seen: dict[str, str] = {}
    for name in names:
        key = file_stem(name).casefold()
        if key in seen:
            raise UserError(
                f"two rows, {seen[key]!r} and {name!r}, would share a file: name one, as in other=RUN; "
                "of a table each seed once, and rows of one config file by --config=FILE"
            )
        seen[key] = name
