"""Files that are whole or not there, and locks: against two processes, a kill or a full disk."""

import json
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import filelock

from common.config import checked
from common.errors import CONTROL, UserError, reading

STALE = 3600  # seconds without a byte: then an unfinished file is a killed process's


def beside(out: Path, end: str) -> Path:
    """The file of the output `out`, such as results/NAME, that ends so. UserError if `out` has no name."""
    if not out.name:
        raise UserError(f"{str(out)!r} has no name that a file could have")
    return out.with_name(out.name + end)


def unfinished(path: Path) -> Path:
    """A new hidden name beside `path`, nobody else's, for what is to take the name `path`.

    Removes what killed processes left in that folder.
    """
    remove_leftovers(path.parent, STALE)
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")


def remove_leftovers(folder: Path, age: float = 0) -> None:
    """Removes what killed processes left in `folder`, if it is older than `age` seconds: unfinished files,
    and locks that nobody holds. An age of 0 is for who holds the folder's lock."""
    for old in (*folder.glob(f".*.{'[0-9a-f]' * 8}.tmp"), *folder.glob(".*lock")):
        with suppress(OSError):  # another process was faster, or holds the lock
            if time.time() - old.stat().st_mtime < age:
                continue
            if old.suffix == ".tmp":
                shutil.rmtree(old) if old.is_dir() else old.unlink()
            else:
                with locked(old, timeout=0):
                    pass


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
    """OSError or UserError if no file `path` can be written: before the work whose result is to go there.
    Makes its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():  # a device would become a file
        raise UserError(f"{path} is there, and no file")
    with tempfile.TemporaryFile(dir=path.parent):
        pass


def for_screen(text: str) -> str:
    """`text`; where standard output is a terminal, with the characters escaped that it would obey."""
    return CONTROL.sub(lambda c: ascii(c[0])[1:-1], text) if sys.stdout.isatty() else text


def real_path(path: str) -> Path:
    """The absolute path behind a user's `path`: ~ and links are followed. Of a circle of links, one of
    them."""
    return Path(os.path.realpath(Path(path).expanduser()))


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, without the mark (BOM) that some editors put before it."""
    with reading(path):
        return path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")


def read_json(
    path: Path, needed: Mapping[str, Any] | None = None, others: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The dict in a JSON file. It has all keys `needed`, and maybe `others`, each of its type.

    UserError naming the file, whatever is wrong with it.
    """
    with reading(path):
        content = json.loads(path.read_bytes())
        return checked(content, {**(others or {}), **(needed or {})}, needed or (), more=True)
