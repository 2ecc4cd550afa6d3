"""Configuration: the defaults of a dataclass < config files in order < --key=value flags.

A config file holds lines `key = literal` and comments, nothing else: it is parsed, never executed. All problems are gathered into one ValueError.
"""

import ast
import difflib
import errno
import functools
import os
import signal
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Callable, TypeVar

T = TypeVar("T")


def read_config(path: str | Path) -> dict[str, Any]:
    """The assignments of a config file. FileNotFoundError or ValueError (with the line) if it is anything but `key = literal` lines."""
    path = Path(path)
    if not path.is_file():
        near = difflib.get_close_matches(path.stem, [p.stem for p in path.parent.glob("*.py")], 1) if path.parent.is_dir() else []
        raise FileNotFoundError(f"no config file {path}" + (f"; did you mean {path.with_stem(near[0])}?" if near else ""))
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except SyntaxError as e:
        raise ValueError(f"{path}:{e.lineno}: not readable as `key = literal` lines: {e.msg}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text file in UTF-8: a config file holds `key = literal` lines") from None
    values = {}
    for node in tree.body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            continue  # a docstring
        try:
            (target,) = node.targets
            values[target.id] = ast.literal_eval(node.value)
        except (AttributeError, ValueError, TypeError):
            raise ValueError(f"{path}:{node.lineno}: a config file holds `key = literal` lines only") from None
    return values


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError):
        return text  # a bare word is a string


def _coerce(value: Any, kind: type) -> Any:
    """`value` as `kind`, TypeError if it is another type; an int passes for a float, nothing else is converted."""
    if kind is float and type(value) is int:
        return float(value)
    if kind is str and not isinstance(value, str):
        raise TypeError
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
            problems.append(f"{where}: unknown key {key!r}" + (f"; did you mean {near[0]!r}?" if near else "; python train.py --help lists the keys"))
            continue
        if entry and known[key] is not dict:
            problems.append(f"{where}: {key} is a {known[key].__name__}, it has no entry {entry!r}")
            continue
        if entry:
            value = {**values.get(key, {}), entry: value}
        elif known[key] is str and where.startswith("--"):
            value = where.partition("=")[2] if "=" in where else value  # --prompt=12 is the string "12"
        try:
            values[key] = _coerce(value, known[key])
        except TypeError:
            problems.append(f"{where}: {key} = {value!r} is a {type(value).__name__}; give a {known[key].__name__}")
    if problems:
        raise ValueError("; ".join(problems))
    if "name" in known and not values.get("name"):
        values["name"] = "-".join(Path(f).stem for f in files) or "run"
    return defaults(**values)


def help_text(defaults: type, source: str) -> str:
    """The dataclass's own lines, comments included: the help of a flat configuration is its source."""
    lines = Path(source).read_text(encoding="utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"class {defaults.__name__}"))
    body = []
    for line in lines[start + 1:]:
        if line and not line.startswith("    "):
            break
        if line.startswith("    def ") or line.startswith("    @"):
            break
        body.append(line)
    return "\n".join(body).rstrip()


def cli(main: Callable[[list[str]], int | None]) -> Callable[[], None]:
    """Wraps a program's main(argv): a user's mistake is one line on stderr and exit code 2, Ctrl-C is 130. TRACEBACK=1 shows where."""
    @functools.wraps(main)
    def run() -> None:
        try:
            code = main(sys.argv[1:])
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            code = 128 + signal.SIGINT
        except (ValueError, OSError) as e:
            if os.environ.get("TRACEBACK"):
                raise
            text = f"{e.strerror}: {e.filename}" if isinstance(e, OSError) and e.filename and e.strerror else str(e)
            if isinstance(e, OSError) and e.errno == errno.ENOSPC:
                text += ": free some space and run it again (a training with --resume)"
            print(f"{Path(sys.argv[0]).name}: error: {' '.join(text.split())}", file=sys.stderr)
            code = 2
        sys.exit(code or 0)
    return run
