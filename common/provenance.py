"""Where a row comes from: the repository's commit and the versions of libraries."""

import shutil
import subprocess
import sys
from importlib.metadata import version

from common.places import CODE, INSTALLED


def _git(*arguments: str) -> str | None:
    """What git says of this repository; None where there is none, or no git."""
    if INSTALLED or not shutil.which("git"):  # installed: perhaps within somebody's other repository
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
