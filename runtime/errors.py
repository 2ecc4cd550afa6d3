"""A user's mistake has a type of its own: a command answers it with one line, anything else with a
traceback."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

# a terminal obeys them, and half of a surrogate pair cannot be written; line ends and tabs are not among them
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def printable(text: str) -> str:
    """`text` on one line, its control characters, and what else does not print, as escapes.

    A terminal obeys them, and an error may quote a file that somebody else wrote.
    """
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in " ".join(text.split())
    )


class UserError(ValueError):
    """Names the value that cannot be, and the remedy."""

    code = 2  # of a command that ends with it


class InUse(UserError):
    """Another process holds what this one was to write: to be tried again later."""

    code = 75  # EX_TEMPFAIL of sysexits.h


@contextmanager
def users_values() -> Iterator[None]:
    """A context for code that gets a user's values and knows nothing of users (model.py, heads/, metrics):
    its ValueError becomes a UserError."""
    try:
        yield
    except UserError:
        raise
    except ValueError as error:
        raise UserError(str(error)) from error
