"""Where the code is, and where a user works."""

import re
from pathlib import Path

CODE = Path(__file__).resolve().parents[1]
# In a checkout both are one. An installed nanoHeads (pip install .) lies among Python's packages, where
# nothing should be written: there prepared data stand in data/ of the current folder, beside out/.
INSTALLED = not (CODE / "pyproject.toml").is_file()
WORK = Path.cwd() if INSTALLED else CODE


def called(text: str) -> str:
    """`text` with the commands in it as one calls them here: installed, `python train.py` is
    `nanoheads train`."""
    if not INSTALLED:
        return text
    text = re.sub(r"python (?:data|labs)/(\w+)/prepare\.py", r"nanoheads prepare \1", text)
    return re.sub(r"python ([\w/]+)\.py", r"nanoheads \1", text)


def labs_with(part: str) -> list[str]:
    """The names of the labs that have labs/NAME/`part`.py: see labs/__init__.py."""
    return sorted(path.parent.name for path in CODE.glob(f"labs/*/{part}.py"))


def find(path: str | Path) -> Path:
    """`path`, if it is there from the current folder; else what has that path in the code, if that is."""
    in_code = CODE / path
    return in_code if not Path(path).exists() and in_code.is_file() else Path(path)
