"""What ends a program with one line and exit code 2: a user's value that cannot be, a file that is not there
or damaged (UserError, OSError), too little memory. Anything else has a traceback: it is a mistake of ours, or
of the head that the user wrote."""

import difflib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from common.places import CODE

# what torch's allocators and cuBLAS say, in a bare RuntimeError
NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")

PIP_NAMES = {"sklearn": "scikit-learn", "mauve": "mauve-text"}

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
    """Names the value that cannot be."""


@contextmanager
def checking() -> Iterator[None]:
    """A context for what checks a user's values by ValueError, as heads and model.py do: people import these
    without this module. It ends as a UserError."""
    try:
        yield
    except UserError:
        raise
    except ValueError as error:
        raise UserError(str(error)) from error


@contextmanager
def reading(path: str | Path) -> Iterator[None]:
    """A context for what reads a file: whatever goes wrong in it names the file.

    Each library has its own kinds of error for a damaged file, and a file of ours may hold anything.
    """
    try:
        yield
    except ModuleNotFoundError:  # the file is not what is wrong
        raise
    except Exception as error:
        named = isinstance(error, ValueError) and str(path) in str(error)
        if named or (isinstance(error, OSError) and error.filename):
            raise
        raise UserError(f"{path} cannot be read: {first_line(error)}") from error


def first_line(error: Exception) -> str:
    """The first line of an error; behind its kind its first sentence, if that is no ValueError.
    torch's second sentence advises to load a file without care."""
    first = (str(error).splitlines() or [""])[0]
    if isinstance(error, ValueError) and first:
        return first
    return f"{type(error).__name__} {first.split('. ')[0]}".strip()


def mistake(e: Exception) -> str | None:
    """What to tell the user of an error that is not ours; None for one that is."""
    if isinstance(e, MemoryError) or (isinstance(e, RuntimeError) and any(s in str(e) for s in NO_MEMORY)):
        return f"out of memory ({first_line(e)})"
    if isinstance(e, OSError) and e.filename and e.strerror:
        near = nearest_file(Path(e.filename)) if isinstance(e, FileNotFoundError) else ""
        return f"{e.strerror}: {e.filename}{near}"
    if isinstance(e, ModuleNotFoundError) and e.name:
        package = e.name.partition(".")[0]
        if any(CODE.glob(f"{package}*")):
            return None
        return f"{package} is not installed: pip install {PIP_NAMES.get(package, package)}"
    return str(e) or type(e).__name__ if isinstance(e, (UserError, OSError)) else None


def nearest(word: str, known: Iterable[str]) -> str:
    """ ": did you mean ...?", the one of `known` that is most like `word`; "" if none is."""
    near = difflib.get_close_matches(word, known, 1)
    return f": did you mean {near[0]}?" if near else ""


def nearest_file(path: Path) -> str:
    """`nearest` of a path that is not there, among what lies in the last folder of it that is."""
    while not path.parent.is_dir():
        path = path.parent
    return nearest(str(path), map(str, path.parent.iterdir()))
