"""Where the code is, and where a user works; what is found there by name, and which packages are."""

import importlib
import re
import shutil
import subprocess
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

CODE = Path(__file__).resolve().parents[1]
# In a checkout both are one. An installed nanoHeads (pip install .) lies among Python's packages, where
# nothing should be written: there prepared data stand in data/ of the current folder, beside out/.
INSTALLED = not (CODE / "pyproject.toml").is_file()
WORK = Path.cwd() if INSTALLED else CODE


def as_installed_command(text: str) -> str:
    """`text`, whose commands are written as the user calls them: `nanoheads train` for `python train.py`
    where nanoHeads is installed."""
    if not INSTALLED:
        return text
    text = re.sub(r"python (?:data|labs)(?:/\w+)?/(\w+)/prepare\.py", r"nanoheads prepare \1", text)
    return re.sub(r"python ([\w/]+)\.py", r"nanoheads \1", text)


@cache
def modules(part: str) -> dict[str, str]:
    """The labs' modules `part`.py by the names of their folders, labs/NAME or labs/LAB/NAME: see
    labs/__init__.py. ValueError for two folders of one name: one would take the other's place."""
    known: dict[str, str] = {}
    for file in sorted(CODE.glob(f"labs/**/{part}.py")):
        module = ".".join(file.relative_to(CODE).with_suffix("").parts)
        if (first := known.setdefault(file.parent.name, module)) != module:
            raise ValueError(f"{first} and {module} have one name, {file.parent.name}: rename a folder")
    return known


def corpora() -> dict[str, Path]:
    """The program of each corpus by the name of its folder: data/NAME/prepare.py, labs/NAME/prepare.py or
    labs/LAB/NAME/prepare.py. ValueError for two folders of one name."""
    programs = [path for home in ("data/*", "labs/*", "labs/*/*") for path in CODE.glob(f"{home}/prepare.py")]
    known = {path.parent.name: path for path in sorted(programs, key=lambda path: path.parent.name)}
    if twice := {*programs} - {*known.values()}:
        raise ValueError(f"there are two corpora {min(twice).parent.name}: rename the folder of {min(twice)}")
    return known


def registered(core: str, registry: str, part: str) -> dict[str, Any]:
    """The entries of the dict `registry`, in the module `core` and in labs/LAB/`part`.py."""
    known = [importlib.import_module(module) for module in (core, *modules(part).values())]
    return {k: v for module in known for k, v in getattr(module, registry).items()}


def find(path: str | Path) -> Path:
    """`path`, if it is in the current folder; else the file of that path beside the code, or in a lab."""
    if Path(path).exists() or Path(path).is_absolute():
        return Path(path)
    return next((p for p in (CODE / path, *sorted(CODE.glob(f"labs/*/{path}"))) if p.is_file()), Path(path))


# -----------------------------------------------------------------------------
# Where a row comes from


def commit() -> str:
    """The repository's commit; "" where there is none.

    With a "+" behind it if files have changed since, except those of results/.
    """
    if INSTALLED or not shutil.which("git"):  # installed: perhaps within somebody's other repository
        return ""

    def git(*arguments: str) -> str:
        command = ["git", "-c", f"safe.directory={CODE}", *arguments]  # also where another user owns it
        return subprocess.run(command, cwd=CODE, capture_output=True, text=True).stdout

    head = git("rev-parse", "HEAD").strip()
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":!/results")
    return head + ("+" if head and changed else "")


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that numbers depend on."""
    packages = ("torch", "numpy", "sacrebleu", "tokenizers", "tiktoken")
    return {"python": sys.version.split()[0], **{p: version(p) for p in packages}}
