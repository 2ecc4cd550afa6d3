"""Where a row comes from: the repository's commit, the code that scored it, the versions of libraries."""

import ast
import hashlib
import subprocess
import sys
from functools import cache
from importlib.metadata import version
from typing import Any

from runtime.places import CODE, INSTALLED

SCORING = (  # what decides the numbers of a row
    "model.py",
    "heads/*.py",
    *(f"evaluation/{name}.py" for name in ("metrics", "diversity", "scoring", "sampling", "texts", "rows")),
    *(f"evaluation/{name}.py" for name in ("scorer", "text_files")),
    "data/held_out.py",
    "data/grammar/machine.py",
    "data/grammar/truth.py",
)


def _git(*arguments: str) -> str | None:
    """What git says of this repository; None where there is none."""
    if INSTALLED:  # perhaps within somebody's other repository
        return None
    done = subprocess.run(["git", *arguments], cwd=CODE, capture_output=True, text=True)
    return None if done.returncode else done.stdout


def commit() -> str:
    """The repository's commit; "" where there is none.

    With a "+" behind it if files have changed since, except those of results/.
    """
    head = _git("rev-parse", "HEAD")
    if head is None:
        return ""
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":!/results")
    return head.strip() + ("+" if changed else "")


def versions() -> dict[str, str]:
    packages = ("torch", "numpy", "sacrebleu", "tokenizers", "tiktoken")
    return {"python": sys.version.split()[0], **{p: version(p) for p in packages}}


@cache
def scoring_code(*more: str) -> str:
    """SHA-256 of the code that scores a row, with the files `more`, whatever its comments, docstrings and
    layout are."""
    files = sorted(path for pattern in (*SCORING, *more) for path in CODE.glob(pattern))
    return code_digest({p.relative_to(CODE).as_posix(): p.read_text(encoding="utf-8") for p in files})


def code_digest(sources: dict[str, str]) -> str:
    """SHA-256 of Python sources by their names, as syntax trees without docstrings."""
    digest = hashlib.sha256()
    for name, source in sources.items():
        digest.update(f"{name} {_plain(ast.parse(source))}\n".encode())
    return digest.hexdigest()


def _plain(node: Any) -> Any:
    """A syntax tree as tuples. What is empty is left out, for Python's versions differ in it."""
    if isinstance(node, list):
        return tuple(map(_plain, node))
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = dict(ast.iter_fields(node))
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
        fields["body"] = fields["body"][1:]
    return (type(node).__name__, *((k, _plain(v)) for k, v in fields.items() if v is not None and v != []))
