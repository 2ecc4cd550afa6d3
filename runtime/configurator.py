"""Configuration: the defaults of a dataclass < config files in order < --key=value flags.

A config file holds lines `key = literal` and comments, nothing else: it is parsed, never executed. All problems are gathered into one ValueError.
Every command is wrapped by `cli`, which turns a user's mistake into one line.
"""

import argparse
import ast
import difflib
import errno
import functools
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from runtime.errors import UserError
from runtime.names import check_name

T = TypeVar("T")
LINE = 1200  # characters of an error
SEEDS = 2**63  # torch takes no seed from here on, numpy none below 0


def read_config(path: str | Path) -> dict[str, Any]:
    """The assignments of a config file. FileNotFoundError or ValueError (with the line) if it is anything but `key = literal` lines."""
    path = Path(path)
    if not path.is_file():
        near = (
            difflib.get_close_matches(path.stem, [p.stem for p in path.parent.glob("*.py")], 1)
            if path.parent.is_dir()
            else []
        )
        raise FileNotFoundError(
            f"no config file {path}" + (f"; did you mean {path.with_stem(near[0])}?" if near else "")
        )
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except SyntaxError as e:
        raise UserError(f"{path}:{e.lineno}: not readable as `key = literal` lines: {e.msg}") from None
    except UnicodeDecodeError:
        raise UserError(
            f"{path} is not a text file in UTF-8: a config file holds `key = literal` lines"
        ) from None
    except (ValueError, RecursionError, MemoryError) as e:  # a NUL; brackets in brackets in brackets
        raise UserError(f"{path}: not readable as `key = literal` lines: {e or type(e).__name__}") from None
    values = {}
    for node in tree.body:
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            continue  # a docstring
        try:
            (target,) = node.targets
            values[target.id] = ast.literal_eval(node.value)
        except (AttributeError, ValueError, TypeError, RecursionError):
            raise UserError(f"{path}:{node.lineno}: a config file holds `key = literal` lines only") from None
    return values


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return text  # a bare word is a string


def coerce(value: Any, kind: type) -> Any:
    """`value` as `kind`, TypeError if it is another type; an int passes for a float, nothing else is
    converted. "~/" is the home folder."""
    if kind is float and type(value) is int and abs(value) < 2**1023:
        return float(value)
    if kind is str and isinstance(value, str):
        return os.path.expanduser(value) if value.startswith("~/") else value
    if type(value) is not kind:
        raise TypeError
    return value


def configure(defaults: type[T], argv: list[str]) -> T:
    """An instance of the dataclass `defaults` from `argv`: config files and `--key=value` flags (`--key` alone means True).

    A flag `--key.name=value` sets one entry of a dict. An empty `name` field becomes the config files' stems, joined by "-".
    Flags apply after all files. ValueError lists every unknown key (with the nearest match) and every wrong type.
    """
    assert is_dataclass(defaults)
    known = {f.name: f.type if isinstance(f.type, type) else type(f.default) for f in fields(defaults)}
    settings: list[tuple[str, str, Any]] = []  # (where it was said, key, value)
    files = [a for a in argv if not a.startswith("--")]
    for f in files:
        settings += [(str(f), k, v) for k, v in read_config(f).items()]
    for flag in (a for a in argv if a.startswith("--")):
        key, sep, text = flag[2:].partition("=")
        settings.append((flag, key, _literal(text) if sep else True))
    values: dict[str, Any] = {}
    problems = []
    for where, key, value in settings:
        key, _, entry = key.partition(".")
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            problems.append(
                f"{where}: unknown key {key!r}"
                + (f"; did you mean {near[0]!r}?" if near else "; python train.py --help lists the keys")
            )
            continue
        if entry and known[key] is not dict:
            problems.append(f"{where}: {key} is a {known[key].__name__}, it has no entry {entry!r}")
            continue
        if entry:
            value = {**values.get(key, {}), entry: value}
        elif known[key] is str and where.startswith("--"):
            value = where.partition("=")[2] if "=" in where else value  # --prompt=12 is the string "12"
        try:
            values[key] = coerce(value, known[key])
        except TypeError:
            problems.append(
                f"{where}: {key} = {value!r} is a {type(value).__name__}; give a {known[key].__name__}"
            )
    if "name" in known and not values.get("name"):
        values["name"] = "-".join(Path(f).stem for f in files) or "run"
    if "name" in known:
        try:
            check_name(values["name"])
        except ValueError as e:
            problems.append(str(e))
    if problems:
        raise UserError("; ".join(problems))
    return defaults(**values)


def check_seed(seed: int) -> int:
    """`seed`, if torch and numpy both take it. ValueError if not."""
    if not 0 <= seed < SEEDS:
        raise UserError(f"seed = {seed}: must lie between 0 and 2**63 - 1")
    return seed


def wants_help(argv: list[str]) -> bool:
    return "-h" in argv or "--help" in argv


def help_text(defaults: type, source: str) -> str:
    """The dataclass's own lines, comments included: the help of a flat configuration is its source."""
    lines = Path(source).read_text(encoding="utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"class {defaults.__name__}"))
    body = []
    for line in lines[start + 1 :]:
        if line and not line.startswith("    "):
            break
        if line.startswith("    def ") or line.startswith("    @"):
            break
        if not line.strip().startswith("# fmt:"):
            body.append(line)
    return "\n".join(body).rstrip()


class Parser(argparse.ArgumentParser):
    """argparse, for commands whose arguments are not a configuration: its mistakes are ValueErrors, one line
    like all others."""

    def __init__(self, doc: str):
        as_written = argparse.RawDescriptionHelpFormatter
        super().__init__(description=doc, formatter_class=as_written, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (--help lists the arguments)")


def path(text: str) -> Path:
    """An argument that names a file or folder; "~" is the home folder even where the shell leaves it
    (--out=~/x)."""
    return Path(os.path.expanduser(text))


def quiet_imports() -> None:
    """To be called by a command before its imports, which take seconds: until `cli` takes over, Ctrl-C ends
    the process without a traceback."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def cli(main: Callable[[list[str]], int | None]) -> Callable[[], None]:
    """Wraps a program's main(argv): a user's mistake, or too little memory, is one line on stderr and exit
    code 2; Ctrl-C is 130; a reader that has gone
    (`| head`) is 141, as of any Unix program. TRACEBACK=1 shows where."""

    @functools.wraps(main)
    def run() -> None:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        for stream in (sys.stdout, sys.stderr):
            # a terminal that has not all characters shows a code, instead of ending the program
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")
        try:
            code = main(_as_text(sys.argv[1:]))
            sys.stdout.flush()
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            code = 128 + signal.SIGINT
        except BrokenPipeError:
            # or Python complains when it closes stdout
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno())
            code = 128 + signal.SIGPIPE
        except Exception as e:
            line = mistake(e)
            if line is None or os.environ.get("TRACEBACK"):
                raise
            line = " ".join(line.split())
            # somebody's value of a megabyte
            line = line if len(line) <= LINE else f"{line[: LINE // 2]} ... {line[-LINE // 2 :]}"
            print(f"{Path(sys.argv[0]).name}: error: {line}", file=sys.stderr)
            code = 2
        sys.exit(code or 0)

    return run


def _as_text(argv: list[str]) -> list[str]:
    for argument in argv:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise UserError(
                f"the argument {argument!a} is not UTF-8: give it in UTF-8, or text in a file (--prompts)"
            ) from None
    return argv


def mistake(e: Exception) -> str | None:
    """What to tell the user of an error that is not ours; None for one that is."""
    # torch.OutOfMemoryError by its name: this module is imported before torch. A CPU's allocator, cuBLAS and
    # CUDA raise a bare RuntimeError
    signs = ("can't allocate memory", "not enough memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
    bare = isinstance(e, RuntimeError) and any(sign in str(e) for sign in signs)
    if bare or isinstance(e, MemoryError) or type(e).__name__ == "OutOfMemoryError":
        return (
            "out of memory: lower what fills it (in training micro_batch, batch_size, block_size, "
            "n_layer or n_embd; in sampling num_samples or samples; "
            f"in a table samples), or end other programs "
            f"({str(e).partition(chr(10))[0].partition('. ')[0] or type(e).__name__})"
        )
    if isinstance(e, OSError) and e.filename and e.strerror:
        text = f"{e.strerror}: {e.filename}"
    elif isinstance(e, (UserError, OSError)):
        text = str(e)
    else:
        return None
    if isinstance(e, OSError) and e.errno == errno.ENOSPC:
        text += ": free some space and run it again (a training with --resume)"
    return text
