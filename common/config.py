"""A program's configuration, and its door.

    config = read(TrainConfig, argv, __doc__)   a dataclass of defaults < config files in order < flags
    cli(main)                                   runs main(argv): a user's mistake is a line, and exit code 2

The dataclass says all that a program takes. A field is a flag, `--key=value` or `--key value`; a field
without a default is a positional argument. A dataclass without such fields takes config files: lines
`key = literal` and comments, which are parsed, never executed. A run's folder stands for the file of its
configuration. The type of a field decides what its value may be (pydantic); `__post_init__` refuses values
that cannot stand together.
"""

import ast
import contextlib
import functools
import inspect
import json
import keyword
import math
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypeVar, get_origin

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from common.errors import CONTROL, UserError, mistake, nearest, nearest_file, printable, reading
from common.places import INSTALLED, WORK, as_installed_command, find

T = TypeVar("T")

# -----------------------------------------------------------------------------
# Types of fields


def _rising(limits: list[float]) -> list[float]:
    if limits != sorted({*limits}):
        raise ValueError("give [lowest, highest]")
    return limits


def _splits(words: str) -> str:
    shlex.split(words)  # ValueError for a quotation without its end
    return words


LARGEST = 1e30  # float32 holds it, and many times as much
NAME = r"[\w(][\w .,:+=()$%^&'-]{0,149}"

Text = Annotated[str, Field(description="no path")]  # in a plain str "~/" is the home folder
Name = Annotated[str, Field(pattern=f"^{NAME}$")]  # a part of paths, a cell of tables, a title of figures
RowName = Annotated[str, Field(pattern=f"^({NAME})?$")]  # "" where there is none
Flags = Annotated[str, AfterValidator(_splits)]  # as on a command line
Positive = Annotated[int, Field(ge=1, lt=2**63)]
Natural = Annotated[int, Field(ge=0, lt=2**63)]
Seed = Natural  # torch takes none above, numpy none below
Size = Annotated[int, Field(ge=1, le=2**20)]  # of a model or a batch: torch multiplies three of them
AtLeast2 = Annotated[int, Field(ge=2, lt=2**63)]
Draws = Annotated[int, Field(ge=1, le=100)]  # of weights, each as large as the embedding
Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, le=LARGEST, allow_inf_nan=False)]
Above0 = Annotated[float, Field(gt=0, le=LARGEST, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
PositiveShare = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]  # such as top_p's mass
Limits = Annotated[list[Above0], Field(min_length=2, max_length=2), AfterValidator(_rising)]
Space = dict[str, Limits]  # setting -> what is searched
Dtype = Literal["auto", "float32", "bfloat16", "float16"]  # of matrix products


def checked(
    values: Mapping[str, Any],
    kinds: Mapping[str, Any],
    required: Collection[str] = (),
    more: bool = False,
    infinite: bool = False,
) -> dict[str, Any]:
    """`values`, each of the type that `kinds` has for its key. Nothing is converted but an int to a float.

    UserError naming every key that has another type, or is `required` and missing, or (unless `more`) is none
    of `kinds`; or a key whose value is `unusable`.
    """
    types = {key: kind if key in required else NotRequired[kind] for key, kind in kinds.items()}
    try:
        out: dict[str, Any] = _adapter(more, *types.items()).validate_python(values)
    except ValidationError as error:
        problems = []
        for e in error.errors(include_url=False, include_context=False):
            key = ".".join(map(str, e["loc"]))
            said = f"{key} = {e['input']!r}: {e['msg'].replace('Input should', 'must')}"
            unknown = f"unknown key {key!r}{nearest(key, kinds) or ', see --help'}"
            problems.append({"missing": f"{key} is missing", "extra_forbidden": unknown}.get(e["type"], said))
        raise UserError("; ".join(problems)) from None
    for key, value in out.items():
        if reason := unusable(value, infinite):
            raise UserError(f"{key} {reason}")
    return out


@functools.cache
def _adapter(more: bool, *types: tuple[str, Any]) -> TypeAdapter:
    make: Any = TypedDict
    record = make("Record", dict(types))
    record.__pydantic_config__ = ConfigDict(strict=True, extra="allow" if more else "forbid")
    return TypeAdapter(record)


def unusable(value: Any, infinite: bool = False) -> str:
    """Why no configuration and no file of ours can hold `value`: a character that a terminal obeys, a nan, an
    inf. "" if they can."""
    if isinstance(value, str):
        return f"holds the character {match[0]!a}" if (match := CONTROL.search(value)) else ""
    if isinstance(value, float):
        return "" if abs(value) < math.inf or (infinite and abs(value) == math.inf) else f"holds {value}"
    inside = [*value.keys(), *value.values()] if isinstance(value, dict) else value
    return next(filter(None, map(unusable, inside)), "") if isinstance(inside, (list, tuple, set)) else ""


# -----------------------------------------------------------------------------
# Files and flags


def read(cls: type[T], argv: list[str], about: str = "") -> T:
    """An instance of the dataclass `cls` from a command line. UserError naming the keys that cannot be.

    `--key.name=value` sets one entry of a dict. Without a `name` the config files' stems are joined by "-";
    without a `row` it is the first of them, without an `overlay` the others.

    --help prints what the program is `about` and the lines of the dataclass, and ends the program.
    """
    assert is_dataclass(cls)
    if "-h" in argv or "--help" in argv:
        print(as_installed_command(f"{about}\n{help_text(cls)}"))
        raise SystemExit
    kinds = {f.name: f.type for f in fields(cls)}
    required = [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]
    if not argv and (required or "row" in kinds):
        print(as_installed_command(about), file=sys.stderr)
        raise SystemExit(2)
    arguments, flags = split_flags(argv, kinds)

    # The files, or the arguments, of which a last one of type list takes all that are left
    values = {f.name: f.default_factory() for f in fields(cls) if f.default_factory is not MISSING}
    files = [] if required else [Path(argument) for argument in arguments]
    if more := [file for file in files[1:] if file.is_dir()]:
        raise UserError(f"{more[0]}: a run's folder stands before all config files, and alone")
    for file in files:
        values |= read_run(file, kinds) if file.is_dir() else read_config(file, kinds)
    given: dict[str, Any] = dict(zip(required, arguments))
    left = len(arguments) - len(required)
    if required and left >= 0 and get_origin(kinds[required[-1]]) is list:
        given[required[-1]] = arguments[len(required) - 1 :]
    elif required and left > 0:
        raise UserError(f"unexpected argument {arguments[len(required)]!r}")
    if twice := given.keys() & {key for key, _ in flags}:
        raise UserError(f"{min(twice)} is given twice, as an argument and as a flag")

    # The flags
    for key, value in flags:
        key, _, entry = key.partition(".")
        if entry:
            others = given.get(key, values.get(key))
            value = {**(others if isinstance(others, dict) else {}), entry: value}
        given[key] = value

    stems = [file.stem for file in files if not file.is_dir()]
    names = {"name": "-".join(stems) or "run", "row": "".join(stems[:1]), "overlay": "-".join(stems[1:])}
    for key in names if "row" in kinds else {"name"} & kinds.keys():
        given[key] = given.get(key) or values.get(key) or names[key]
    values |= checked(given, kinds, required)
    for key, value in values.items():
        if kinds[key] is not Text and isinstance(value, str) and value.startswith("~/"):
            values[key] = os.path.expanduser(value)
    return cls(**values)


def read_config(path: str | Path, kinds: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The assignments of a config file, `key = literal` lines, of these `kinds`.

    A relative path is looked for in the current folder, then beside the code, then in the labs. UserError for
    anything else in it, and for a key that is there twice.
    """
    path, values = find(path), {}
    with reading(path):
        if not path.exists() and not path.suffix:  # --resume out/RUN of a run that is not there, or mistyped
            begin = f": python train.py CONFIG.py --out_dir={path} begins a run there"
            meant = [f"{name}.py" for name in (path, f"config/{path}") if find(f"{name}.py").is_file()]
            meant += [f"--{path}"] if str(path).partition("=")[0] in (kinds or ()) else []
            near = f": did you mean {meant[0]}?" if meant else nearest_file(path)
            raise UserError(f"{path} is no run and no config file{near or begin}")
        for node in ast.parse(path.read_bytes()).body:
            match node:
                case ast.Expr(ast.Constant(str())):
                    pass  # a docstring
                case ast.Assign(targets=[ast.Name(key)]):
                    if key in values:
                        raise UserError(f"line {node.lineno} sets {key} again")
                    if isinstance(node.value, ast.Name):
                        raise UserError(f"line {node.lineno}: {key} = {node.value.id}: text stands in quotes")
                    values[key] = ast.literal_eval(node.value)
                case _:
                    raise UserError(f"line {node.lineno} is no `key = literal`")
        return values if kinds is None else checked(values, kinds)


def read_run(folder: Path, kinds: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that the run in `folder` was begun with: the folder stands for a config file."""
    last = next((p for p in (folder / "last", folder / "last.old") if p.is_dir()), folder / "last")
    with reading(last / "config.json"):
        config = json.loads((last / "config.json").read_bytes())
        known = {key: value for key, value in config.items() if key in kinds}
        if data := known.get("data"):  # the folder; a standard one that is gone is prepared again
            gone = Path(data).parts[0] == "data" and not (WORK / data).is_dir()
            known["data"] = "" if gone else str(WORK / data)
        if "-" in known["tokenizer"]:  # of a file, whose content names it
            known["tokenizer"] = str(last / "tokenizer.json")
        return checked(known, kinds) | {"out_dir": str(folder)}


def split_flags(argv: list[str], kinds: Mapping[str, Any]) -> tuple[list[str], list[tuple[str, Any]]]:
    """The arguments that are no flags; and (key, value) of each flag.

    The value stands behind "=" or is the next argument; None if there is neither. A bool needs none: `--key`
    is True.
    """
    arguments: list[str] = []
    flags: list[tuple[str, Any]] = []
    left = argv[::-1]
    while left:
        argument = left.pop()
        if not argument.startswith("-"):
            arguments.append(argument)
            continue
        key, equals, text = argument.removeprefix("--").partition("=")
        key += "_" * keyword.iskeyword(key)  # --class is the field class_
        kind: Any = kinds.get(key)
        if not equals and kind is bool and left[-1:] not in (["True"], ["False"]):
            flags.append((key, True))
        elif not equals and (not left or left[-1].startswith("--")):
            flags.append((key, None))
        else:
            flags.append((key, literal(text if equals else left.pop(), kind)))
    return arguments, flags


def literal(text: str, kind: Any) -> Any:
    """The value of a flag: a Python literal, where its field is no string. A list may go without brackets."""
    kind = kind.__origin__ if get_origin(kind) is Annotated else kind
    value: Any = text
    if kind is not str and get_origin(kind) is not Literal:
        with contextlib.suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            value = ast.literal_eval(text)  # a bare word is a string
    if get_origin(kind) is list:
        return list(value) if isinstance(value, (list, tuple)) else [value]
    return value


def with_defaults(defaults: type, config: dict[str, Any]) -> dict[str, Any]:
    """`config`, a recorded one, with the default of each key that an earlier version had not.

    Every comparison of a recorded configuration with a wanted one begins here: what is missing in a record
    is neither a difference nor equal to everything.
    """
    return vars(defaults()) | config


def help_text(cls: type) -> str:
    """The lines of a dataclass, comments included, below those that it inherits."""
    body = []
    for base in reversed([c for c in cls.__mro__ if is_dataclass(c)]):
        for line in inspect.getsource(base).splitlines():
            if line.startswith(("    def ", "    @")):
                break
            if not line.startswith(("class ", "@", "    # fmt:")):
                body.append(re.sub(r"^(    \w+)_:", r"\1:", line))  # class_ is the flag --class
    return "\n".join(body).rstrip()


# -----------------------------------------------------------------------------
# A program as a process


def cli(main: Callable[[list[str]], int]) -> None:
    """Runs a program's main(argv), and ends the process with its exit code.

    A user's mistake, a package that is missing or too little memory is one line on stderr and exit code 2;
    TRACEBACK=1 shows where. Any other error has its traceback.
    Ctrl-C is 130, SIGTERM 143: what was begun is cleaned up. A reader that has gone (`| head`) is 141, as of
    any Unix program.
    """
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    streams: Any = [out or open(os.devnull, "w") for out in (sys.stdout, sys.stderr)]  # None if closed (>&-)
    sys.stdout, sys.stderr = streams
    for stream in streams:
        stream.reconfigure(errors="backslashreplace")  # in a terminal without all characters
    try:
        code = main(sys.argv[1:])
        print(end="", flush=True)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = 130
    except BrokenPipeError:
        # what is still to be written goes nowhere, or Python complains when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    except Exception as e:
        line = mistake(e)
        if line is None or os.environ.get("TRACEBACK"):
            raise
        line = as_installed_command(printable(line))
        line = line if len(line) < 1200 else f"{line[:600]} ... {line[-600:]}"  # somebody's megabyte
        program = Path(sys.argv[0])
        called = " ".join(dict.fromkeys(("nanoheads", program.stem))) if INSTALLED else program.name
        print(f"{called}: error: {line}", file=sys.stderr)
        code = 2
    sys.exit(code)
