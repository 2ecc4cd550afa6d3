"""The command line of every command: a dataclass of defaults < config files in order < --key=value flags.

The dataclass says all that a command takes: a field is a flag, `--key=value` or `--key value`, and a field
without a default is a positional argument. A dataclass without those takes config files. A config file holds
lines `key = literal` and comments, nothing else: it is parsed, never executed. pydantic checks each value
against the type of its field (common/values.py). All problems are gathered into one UserError. Every command
is wrapped by `cli`, which turns a user's mistake into one line.
"""

import ast
import contextlib
import functools
import inspect
import keyword
import os
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_origin

from common.errors import UserError, mistake, printable, reading
from common.names import check_name
from common.places import INSTALLED, called, find, translated
from common.values import Text, typed

T = TypeVar("T")
LINE = 1200  # characters of an error
SIGPIPE = getattr(signal, "SIGPIPE", 13)  # Windows has none


# -----------------------------------------------------------------------------
# Files and flags


def read_config(path: str | Path) -> dict[str, Any]:
    """The assignments of a config file, `key = literal` lines.

    A relative path is looked for in the current folder, then beside the code.
    """
    path, values = find(path), {}
    with reading(path):
        for node in ast.parse(path.read_bytes()).body:
            match node:
                case ast.Expr(ast.Constant(str())):
                    pass  # a docstring
                case ast.Assign(targets=[ast.Name(key)]):
                    values[key] = ast.literal_eval(node.value)
                case _:
                    raise UserError(f"line {node.lineno} is no `key = literal`")
    return values


def read_flags(argv: list[str], kinds: dict[str, Any]) -> tuple[list[str], list[tuple[str, Any]]]:
    """What is no flag; and (key, value) of each flag.

    The value stands behind "=" or is the next argument, None where neither is there. A bool needs none:
    `--key` is True. The text is a literal, except where `kinds` has a string or a choice of strings. A list
    may go without its brackets.
    """
    arguments, flags, left = [], [], argv[::-1]
    while left:
        argument = left.pop()
        if not argument.startswith("-"):
            arguments.append(argument)
            continue
        key, equals, text = argument.removeprefix("--").partition("=")
        key += "_" * keyword.iskeyword(key)  # --class is the field class_
        kind: Any = kinds.get(key)
        if get_origin(kind) is Annotated:
            kind = kind.__origin__
        value: Any = text
        if not equals and kind is bool and left[-1:] not in (["True"], ["False"]):
            value = True
        elif not equals:
            value = left.pop() if left and not left[-1].startswith("--") else None
        if isinstance(value, str) and kind is not str and get_origin(kind) is not Literal:
            with contextlib.suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
                value = ast.literal_eval(value)  # a bare word is a string
        if get_origin(kind) is list and value is not None:
            value = list(value) if isinstance(value, (list, tuple)) else [value]
        flags.append((key, value))
    return arguments, flags


def _positional(kinds: dict[str, Any], arguments: list[str]) -> tuple[list[tuple[str, Any]], list[str]]:
    """(field, value) from the arguments that are no flags, and what is wrong with them. A list takes all that
    are left, at least one."""
    values, problems, left = [], [], arguments
    for key, kind in kinds.items():
        if not left:
            problems.append(f"{key} is missing: --help says what it is")
            continue
        taken = len(left) if get_origin(kind) is list else 1
        values.append((key, left if get_origin(kind) is list else left[0]))
        left = left[taken:]
    if left:
        problems.append(f"unexpected argument {left[0]!r}: --help lists the arguments")
    return values, problems


def _at_home(value: Any) -> Any:
    """`value` with the home folder for "~/" at the start of a path."""
    if isinstance(value, list):
        return [_at_home(v) for v in value]
    return os.path.expanduser(value) if isinstance(value, str) and value.startswith("~/") else value


def _set(values: dict[str, Any], key: str, value: Any, kinds: dict[str, Any]) -> None:
    """Sets values[key], or one entry of it. UserError if `kinds` has no such key, or not with this value."""
    key, _, entry = key.partition(".")
    kind = kinds.get(key)
    if kind is None or (entry and (get_origin(kind) or kind) is not dict):
        raise UserError(f"unknown key {key!r}" + f" with an entry {entry!r}" * bool(entry))
    if entry:
        value = {**values.get(key, {}), entry: value}
    values[key] = typed(key, value if kind is Text else _at_home(value), kind)


def configure(defaults: type[T], argv: list[str]) -> T:
    """An instance of the dataclass `defaults` from `argv`.

    Positional arguments are the fields without a default; a dataclass that has none takes config files, which
    apply in order; `defaults.recorded`, where there is one, reads a folder. Flags apply after all files;
    `--key.name=value` sets one entry of a dict. An empty `name`
    field becomes the config files' stems, joined by "-"; an empty `row` is the first of them, an empty
    `overlay` the others, joined. UserError lists every unknown key, every value that its field cannot have,
    and what is missing.
    """
    assert is_dataclass(defaults)
    kinds = {f.name: f.type for f in fields(defaults)}
    required = [f for f in fields(defaults) if f.default is MISSING and f.default_factory is MISSING]
    arguments, flags = read_flags(argv, kinds)
    files = [] if required else arguments
    given, problems = _positional({f.name: f.type for f in required}, arguments) if required else ([], [])
    recorded, settings = getattr(defaults, "recorded", None), [("", key, value) for key, value in given]
    for path in files:
        read = recorded(Path(path)) if recorded and Path(path).is_dir() else read_config(path)
        settings += [(f"{path}: ", key, value) for key, value in read.items()]
    settings += [("", key, value) for key, value in flags]
    # a flag for one entry of a dict leaves its others as they are
    values = {f.name: f.default_factory() for f in fields(defaults) if callable(f.default_factory)}
    for where, key, value in settings:
        try:
            _set(values, key, value, kinds)
        except UserError as error:
            problems.append(f"{where}{error}")
    if "name" in kinds:
        stems = [Path(f).stem for f in files if not Path(f).is_dir()]
        values["name"] = values.get("name") or "-".join(stems) or "run"
        if {"row", "overlay"} <= kinds.keys():
            values["row"] = values.get("row") or "".join(stems[:1])
            values["overlay"] = values.get("overlay") or "-".join(stems[1:])
        check_name(values["name"])
    if problems:
        raise UserError("; ".join(dict.fromkeys(problems)))
    return defaults(**values)


def completed(defaults: type, config: dict[str, Any]) -> dict[str, Any]:
    """`config`, a recorded one, with today's keys and the default of each that an earlier version had not.

    Every comparison of a recorded configuration with a wanted one begins here: what is missing in a record
    is neither a difference nor equal to everything.
    """
    return vars(defaults()) | translated(config)


def wants_help(argv: list[str]) -> bool:
    return "-h" in argv or "--help" in argv


def help_text(defaults: type) -> str:
    """The dataclass's own lines, comments included, below those that it inherits.

    The help of a flat configuration is its source.
    """
    body = []
    for cls in reversed([c for c in defaults.__mro__ if is_dataclass(c)]):
        for line in inspect.getsource(cls).splitlines():
            if line.startswith(("    def ", "    @")):
                break
            if not line.startswith(("class ", "@", "    # fmt:")):
                body.append(re.sub(r"^(    \w+)_:", r"\1:", line))  # class_ is the flag --class
    return "\n".join(body).rstrip()


# -----------------------------------------------------------------------------
# A command as a process


def quiet_imports() -> None:
    """Lets Ctrl-C end the process without a traceback until `cli` takes over.

    A command calls it before its imports, which take seconds.
    """
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # in the background of a script it is ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def cli(main: Callable[[list[str]], int | None]) -> Callable[[], None]:
    """Wraps a program's main(argv).

    A user's mistake, or too little memory, is one line on stderr and exit code 2; TRACEBACK=1 shows where. A
    folder that another process writes is 75. Ctrl-C is 130, SIGTERM 143: what was begun is cleaned up. A
    reader that has gone (`| head`) is 141, as of any Unix program.
    """

    @functools.wraps(main)
    def run() -> None:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
        for name in ("stdout", "stderr"):
            if getattr(sys, name) is None:  # closed (>&-): what is printed is dropped
                setattr(sys, name, open(os.devnull, "w"))
        for stream in (sys.stdout, sys.stderr):
            # a terminal that has not all characters shows a code, instead of ending the program
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")
        try:
            code = main(sys.argv[1:])
            sys.stdout.flush()
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            code = 128 + signal.SIGINT
        except BrokenPipeError:
            code = 128 + SIGPIPE
        except Exception as e:
            line = mistake(e)
            if line is None or os.environ.get("TRACEBACK"):
                raise
            line = called(printable(line))
            if len(line) > LINE:  # somebody's value of a megabyte
                line = f"{line[: LINE // 2]} ... {line[-LINE // 2 :]}"
            program = f"nanoheads {Path(sys.argv[0]).stem}" if INSTALLED else Path(sys.argv[0]).name
            print(f"{program}: error: {line}", file=sys.stderr)
            code = getattr(e, "code", 2)
        try:
            sys.stdout.flush()
        except OSError:  # what is still to be written goes nowhere, or Python complains when it ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(code or 0)

    return run
