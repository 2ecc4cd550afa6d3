"""The command line of every command: a dataclass of defaults < config files in order < --key=value flags.

The dataclass says all that a command takes: a field is a flag, `--key=value` or `--key value`, and a field
without a default is a positional argument. A dataclass without those takes config files. A config file holds
lines `key = literal` and comments, nothing else: it is parsed, never executed. All problems are gathered into
one UserError. Every command is wrapped by `cli`, which turns a user's mistake into one line.
"""

import ast
import difflib
import errno
import functools
import inspect
import keyword
import os
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from runtime.errors import UserError, printable
from runtime.names import check_name
from runtime.packages import not_installed
from runtime.places import CODE, find

T = TypeVar("T")
LINE = 1200  # characters of an error
LARGEST = 1e30  # of a float: float32 holds it, and many times as much
SEEDS = 2**63  # torch takes no seed from here on, numpy none below 0
NANOGPT = {  # its names, where ours are not alike -> ours
    "gradient_accumulation_steps": "micro_batch",
    "max_new_tokens": "length",
    "start": "prompt",
    "wandb_run_name": "name",
    "decay_lr": "min_lr",
}
SIGPIPE = getattr(signal, "SIGPIPE", 13)  # Windows has none
Text = Annotated[
    str, "not a path"
]  # kept as it is, where a plain str beginning with "~/" is in the home folder


# -----------------------------------------------------------------------------
# Values


def read_config(path: str | Path) -> dict[str, Any]:
    """The assignments of a config file.

    A relative path is looked for in the current folder, then beside the code. FileNotFoundError or UserError
    (with the line) if it is anything but `key = literal` lines.
    """
    path = find(path)
    if not path.is_file():
        folder = path.parent if path.parent.is_dir() else CODE / path.parent
        near = difflib.get_close_matches(path.stem, [p.stem for p in folder.glob("*.py")], 1)
        hint = f"; did you mean {path.with_stem(near[0])}?" if near else ""
        raise FileNotFoundError(f"no config file {path}{hint}")
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
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            if isinstance(node.value.value, str):
                continue  # a docstring
        try:
            match node:
                case ast.Assign(targets=[ast.Name(key)]):
                    values[key] = ast.literal_eval(node.value)
                case _:
                    raise ValueError
        except (ValueError, TypeError, RecursionError):
            raise UserError(f"{path}:{node.lineno}: a config file holds `key = literal` lines only") from None
    return values


def coerce(value: Any, kind: Any) -> Any:
    """`value` as `kind`, TypeError if it is another type.

    An int passes for a float, nothing else is converted. In a str "~/" is the home folder. `kind` is a type,
    Literal["a", "b"], list[type] or Text.
    """
    if get_origin(kind) is Literal:
        if value in get_args(kind):
            return value
        raise TypeError
    if get_origin(kind) is list:
        return [coerce(v, get_args(kind)[0]) for v in coerce(value, list)]
    if kind is Text and isinstance(value, str):
        return value
    if kind is float and type(value) is int and abs(value) < 2**1023:
        return float(value)
    if kind is str and isinstance(value, str):
        return os.path.expanduser(value) if value.startswith("~/") else value
    if type(value) is not kind:
        raise TypeError
    return value


def _from_text(text: str, kind: Any) -> Any:
    """What the text of a flag means to a field of this kind: the text itself, or a literal.

    A list may go without its brackets: 1,2 is [1, 2], and 1 is [1].
    """
    if kind in (str, Text) or get_origin(kind) is Literal:
        return text
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        value = text  # a bare word is a string
    if kind is list or get_origin(kind) is list:
        return list(value) if isinstance(value, (list, tuple)) else [value]
    return value


def unusable(value: Any) -> str:
    """Why no setting of any command can be `value`, or hold it; "" if one can."""
    if isinstance(value, str) and ("\0" in value or any("\ud800" <= c <= "\udfff" for c in value)):
        return "holds a NUL or half of a surrogate pair, which no path and no UTF-8 text has"
    if isinstance(value, int) and abs(value) > SEEDS:
        return "must lie between -2**63 and 2**63"
    if isinstance(value, float) and not abs(value) <= LARGEST:
        return f"must lie between -{LARGEST:g} and {LARGEST:g}"
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    held = value if isinstance(value, (list, tuple, set)) else ()
    return next(filter(None, map(unusable, held)), "")


def _wanted(kind: Any) -> str:
    """How to say `kind` to a user."""
    if kind is Text:
        kind = str
    if get_origin(kind) is Literal:
        return " or ".join(map(repr, get_args(kind)))
    return f"a {str(kind) if get_origin(kind) else kind.__name__}"


# -----------------------------------------------------------------------------
# Arguments


def _split(argv: list[str], kinds: dict[str, Any]) -> tuple[list[str], list[tuple[str, str, str | None]]]:
    """What is no flag, and of each flag (as it was written, key, text of its value or None).

    The value of a flag stands behind "=" or is the next argument. A bool needs none.
    """
    arguments, flags, left = [], [], argv[::-1]
    while left:
        written = left.pop()
        if not written.startswith("-"):
            arguments.append(written)
            continue
        key, equals, value = written.removeprefix("--").partition("=")
        key += "_" * keyword.iskeyword(key)  # --class is the field class_
        text = value if equals else None
        is_bool = kinds.get(key) is bool
        if not equals and not is_bool and left and not left[-1].startswith("--"):
            text = left.pop()
            written = f"{written} {text}"
        flags.append((written, key, text))
    return arguments, flags


def _positional(defaults: type, arguments: list[str]) -> tuple[dict[str, Any], list[str]]:
    """The values of the fields without a default, from the arguments that are no flags, and what is wrong.

    A list takes all arguments that are left, at least one.
    """
    values, problems, left = {}, [], list(arguments)
    for f in (f for f in fields(defaults) if _is_positional(f)):
        if not left:
            problems.append(f"{f.name} is missing: --help says what it is")
        elif get_origin(f.type) is list:
            values[f.name], left = coerce(left, f.type), []
        else:
            values[f.name] = coerce(left.pop(0), f.type)
    if left:
        problems.append(f"unexpected argument {left[0]!r}: --help lists the arguments")
    return values, problems


def _is_positional(f: Field) -> bool:
    return f.default is MISSING and f.default_factory is MISSING


def _problem(where: str, key: str, value: Any, kind: Any) -> str:
    """What to say of a value that is not of its kind."""
    if where == f"--{key}":
        return f"{where}: give its value, too: {where}=VALUE"
    if get_origin(kind) is Literal:
        return f"{where}: {key} = {value!r}: give {_wanted(kind)}"
    return f"{where}: {key} = {value!r} is a {type(value).__name__}; give {_wanted(kind)}"


def _other_programs(config: str) -> list[str]:
    """The programs that the comments of a config file give it to, where this program is none of them."""
    path = find(config)
    commands = re.compile(rf"^# *python (\S+\.py) .*\b{re.escape(path.name)}\b", re.M)
    programs = dict.fromkeys(commands.findall(path.read_text(encoding="utf-8")))
    return [] if _program() in programs else list(programs)


def configure(defaults: type[T], argv: list[str]) -> T:
    """An instance of the dataclass `defaults` from `argv`.

    Positional arguments are the fields without a default; a dataclass that has none takes config files, which
    apply in order. Flags apply after all files: `--key=value` or `--key value`; `--key` alone means True, and
    `--key.name=value` sets one entry of a dict. An empty `name` field becomes the config files' stems, joined
    by "-"; an empty `row` is the first of them, an empty `overlay` the others, joined. UserError lists every
    unknown key (with the nearest match), every wrong type and what is missing.
    """
    assert is_dataclass(defaults)
    kinds = {f.name: f.type for f in fields(defaults) if not _is_positional(f)}
    arguments, flags = _split(argv, kinds)
    values: dict[str, Any] = {}
    problems: list[str] = []
    files: list[str] = []
    if len(kinds) < len(fields(defaults)):
        values, problems = _positional(defaults, arguments)
    else:
        files = arguments
    said = [(path, key, value) for path in files for key, value in read_config(path).items()]
    for written, key, text in flags:
        kind = kinds.get(key)
        said.append((written, key, True if text is None else _from_text(text, kind)))
    for where, key, value in said:
        key, _, entry = key.partition(".")
        if key not in kinds:
            if where in files and (others := _other_programs(where)):
                problems.append(f"{where} is for {' and '.join(others)}: {key!r} is no key of {_program()}")
                break
            near = [NANOGPT[key]] if NANOGPT.get(key) in kinds else difflib.get_close_matches(key, kinds, 1)
            hint = f"did you mean {near[0]!r}?" if near else "--help lists the keys"
            problems.append(f"{where}: unknown key {key!r}; {hint}")
        elif entry and kinds[key] is not dict:
            problems.append(f"{where}: {key} is {_wanted(kinds[key])}, it has no entry {entry!r}")
        elif wrong := unusable(value):
            problems.append(f"{where}: {key} {wrong}")
        else:
            value = {**values.get(key, {}), entry: value} if entry else value
            try:
                values[key] = coerce(value, kinds[key])
            except TypeError:
                problems.append(_problem(where, key, value, kinds[key]))
    if "name" in kinds:
        stems = [Path(f).stem for f in files]
        values["name"] = values.get("name") or "-".join(stems) or "run"
        if {"row", "overlay"} <= kinds.keys():
            values["row"] = values.get("row") or "".join(stems[:1])
            values["overlay"] = values.get("overlay") or "-".join(stems[1:])
        try:
            check_name(values["name"])
        except ValueError as e:
            problems.append(str(e))
    if problems:
        raise UserError("; ".join(problems))
    return defaults(**values)


def completed(defaults: type, config: dict[str, Any]) -> dict[str, Any]:
    """`config`, a recorded one, with the default of each key that an earlier version did not have.

    Every comparison of a recorded configuration with a wanted one begins here: what is missing in a record
    is neither a difference nor equal to everything.
    """
    return vars(defaults()) | config


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


def check_seed(seed: int) -> int:
    """`seed`, if torch and numpy both take it. ValueError if not."""
    if not 0 <= seed < SEEDS:
        raise UserError(f"seed = {seed}: must lie between 0 and 2**63 - 1")
    return seed


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

    A user's mistake, or too little memory, is one line on stderr and exit code 2; TRACEBACK=1 shows where.
    Ctrl-C is 130. A reader that has gone (`| head`) is 141, as of any Unix program.
    """

    @functools.wraps(main)
    def run() -> None:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        for name in ("stdout", "stderr"):
            if getattr(sys, name) is None:  # closed (>&-): what is printed is dropped
                setattr(sys, name, open(os.devnull, "w"))
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
            assert sys.__stdout__ is not None  # it is what broke
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno())
            code = 128 + SIGPIPE
        except Exception as e:
            line = mistake(e)
            if line is None or os.environ.get("TRACEBACK"):
                raise
            line = printable(line)
            # somebody's value of a megabyte
            _say(line if len(line) <= LINE else f"{line[: LINE // 2]} ... {line[-LINE // 2 :]}")
            code = 2
        sys.exit(code or 0)

    return run


def _program() -> str:
    return Path(sys.argv[0]).name


def _say(error: str) -> None:
    print(f"{_program()}: error: {error}", file=sys.stderr)


def _as_text(argv: list[str]) -> list[str]:
    for argument in argv:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise UserError(
                f"the argument {argument!a} is not UTF-8: give it in UTF-8, or text in a file (--prompts)"
            ) from None
    return argv


def _is_ours(module: str) -> bool:
    path = CODE / module.partition(".")[0]
    return path.is_dir() or path.with_suffix(".py").is_file()


def mistake(e: Exception) -> str | None:
    """What to tell the user of an error that is not ours; None for one that is."""
    # torch.OutOfMemoryError by its name: this module is imported before torch.
    # A CPU's allocator, cuBLAS and CUDA raise a bare RuntimeError
    signs = ("can't allocate memory", "not enough memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
    bare = isinstance(e, RuntimeError) and any(sign in str(e) for sign in signs)
    if bare or isinstance(e, MemoryError) or type(e).__name__ == "OutOfMemoryError":
        return (
            "out of memory: lower what fills it (in training micro_batch, batch_size, block_size, "
            "n_layer or n_embd, of a classifier batch_size or layers; in sampling num_samples or samples; "
            "in a table samples), or end other programs "
            f"({str(e).partition(chr(10))[0].partition('. ')[0] or type(e).__name__})"
        )
    if isinstance(e, OSError) and e.filename and e.strerror:
        text = f"{e.strerror}: {e.filename}"
    elif isinstance(e, (UserError, OSError)):
        text = str(e)
    elif isinstance(e, ModuleNotFoundError) and e.name and not _is_ours(e.name):
        text = not_installed(e.name.partition(".")[0])
    else:
        return None
    if isinstance(e, OSError) and e.errno == errno.ENOSPC:
        text += ": free some space and run it again (a training with --resume)"
    return text
