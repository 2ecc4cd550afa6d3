"""Files that are whole or not there, and locks: against two processes, a kill or a full disk."""

import errno
import glob
import json
import os
import re
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import filelock

from runtime.errors import UserError

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
LARGEST = 2**28  # bytes of a file that is read whole
STALE = 3600  # seconds without a byte, after which an unfinished file is taken for a killed process'


def beside(out: Path, end: str) -> Path:
    """The file of the output `out`, such as results/NAME, that ends so. UserError if `out` has no name."""
    if out.name in ("", ".."):
        raise UserError(
            f"{str(out)!r} is a folder: give a file's name without its ending, as in results/NAME"
        )
    return out.with_name(out.name + end)


def unfinished(path: Path) -> Path:
    """A new hidden name beside `path`, nobody else's, for what is to take the name `path`.

    Removes what killed processes left there.
    """
    remove_leftovers(path.parent, path.name, STALE)
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")


def remove_leftovers(folder: Path, name: str = "*", age: float = 0) -> None:
    """Removes what killed processes left of `name` in `folder`, if it is older than `age` seconds.

    An age of 0 is for who holds the folder's lock.
    """
    pattern = name if name == "*" else glob.escape(name)
    for old in folder.glob(f".{pattern}.{'[0-9a-f]' * 8}.tmp"):
        with suppress(OSError):  # another process was faster
            if time.time() - old.stat().st_mtime >= age:
                shutil.rmtree(old) if old.is_dir() else old.unlink()


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A binary file that takes the name `path` once it is whole and on disk; before, `path` stays as it was.
    Its folder is made if it is not there.

    If two processes write at the same time, the later one's file stays, whole. A process that reads the file
    in order to add to it holds `locked` all the while.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = unfinished(path)
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:  # also Ctrl-C and a full disk: nothing half-written stays
        temporary.unlink(missing_ok=True)
        # an error without a number has a message of its own, which says enough
        if isinstance(error, OSError) and error.errno and error.filename in (None, str(temporary)):
            # "No space left on device" does not say for which file, or names the temporary one
            error.filename, error.filename2 = str(path), None
        raise


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write `content` to `path`, all or nothing."""
    with replacing(path) as file:
        file.write((json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())


def sync_folder(folder: Path) -> None:
    """Waits until every file under `folder` is on disk."""
    for f in filter(Path.is_file, folder.rglob("*")):
        with open(f, "rb") as fd:
            os.fsync(fd.fileno())


@contextmanager
def locked(path: Path, timeout: float = -1) -> Iterator[None]:
    """Holds the lock file `path` for this process, after waiting for any other holder.

    It waits at most `timeout` seconds (-1: for ever), then raises filelock.Timeout. The lock ends with the
    process, however that ends, and the file is removed. A file that a killed process leaves locks nothing.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(path, timeout=timeout):
        try:
            yield
        finally:
            # while it is held: a process that waited checks that the file it got still has its name
            path.unlink(missing_ok=True)


def lock_of(path: Path) -> Path:
    """The lock file of `path` and of the files that share its name."""
    return path.with_name(f".{path.name}.lock")


def check_writable(path: Path) -> None:
    """OSError if no file of the name `path` can be written. Makes nothing.

    It is called before the work whose result is to go there.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    folder = path.parent
    while not folder.exists():  # it will be made in the nearest folder above that exists
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        error.filename = str(path)
        raise


def read_bytes(path: Path) -> bytes:
    """What a file holds. UserError naming it if that is more than LARGEST: /dev/zero has no end."""
    with path.open("rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise UserError(f"{path} holds more than {LARGEST:,} bytes")
    return content


def for_screen(text: str) -> str:
    """`text`; where standard output is a terminal, with the characters escaped that it would obey."""
    return CONTROL.sub(lambda c: ascii(c[0])[1:-1], text) if sys.stdout.isatty() else text


def real_path(path: str) -> Path:
    """The absolute path that a user's one leads to; where its links lead round in a circle, one of them."""
    return Path(os.path.realpath(Path(path).expanduser()))


def read_text(path: Path) -> str:
    """The text of a UTF-8 file. UserError naming it if it is not UTF-8."""
    try:
        return read_bytes(path).decode().replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        why = f"{error.reason} at byte {error.start}"
        raise UserError(f"{path} is not UTF-8 text ({why}): convert it") from None


def read_json(path: Path, strict: bool = False) -> Any:
    """The content of a JSON file, whose strings can be printed. `strict` refuses the NaN and Infinity that
    Python's JSON may hold.

    UserError naming the file, whatever is wrong with it.
    """

    def refuse(number: str) -> float:
        raise UserError(f"it holds {number}")

    try:
        content = json.loads(read_bytes(path), parse_constant=refuse if strict else None)
        check_text(content)
        return content
    except (ValueError, RecursionError) as error:
        # not JSON or UTF-8; a number of 5,000 digits; brackets in brackets in brackets
        raise UserError(f"{path} is not JSON that can be read ({error})") from None


def check_text(content: Any) -> None:
    """UserError for a string in what a JSON file holds that has control characters but line ends and tabs,
    which a terminal would obey, or half of a surrogate pair, which cannot be written again."""
    if isinstance(content, str):
        if match := CONTROL.search(content):
            raise UserError(f"a string in it has the character {match[0]!a}")
    elif isinstance(content, (dict, list)):
        for part in content:
            check_text(part)
        if isinstance(content, dict):
            check_text(list(content.values()))


@contextmanager
def foreign(path: Path, kind: str) -> Iterator[None]:
    """A context for code that reads a JSON of ours which somebody may have changed.

    If the code does not find there what it expects, a UserError names the file.
    """
    try:
        yield
    except (LookupError, TypeError, AttributeError, ArithmeticError, ValueError, StopIteration) as error:
        if isinstance(error, ValueError) and str(path) in str(error):
            raise
        raise UserError(f"{path} is not {kind}: {type(error).__name__} {error}") from error
