"""nanoHeads: a GPT whose output head and generation order are choices.

    nanoheads COMMAND [arguments]           --help after it says more, with examples
    nanoheads prepare CORPUS [arguments]    the token files of a corpus

COMMANDS

In a checkout `python train.py ...` is `nanoheads train ...`. Config files are found from the current folder,
else among nanoHeads' own. Prepared data go to data/ and runs to out/ of the current folder. --version says
which nanoHeads this is. A command names a package that it lacks; in a checkout pip install ".[all]" adds all.
"""

import runpy
import sys
from pathlib import Path

from nanoheads import __version__

HERE = Path(__file__).resolve().parent
COMMANDS = {
    path.relative_to(HERE).with_suffix("").as_posix(): path
    for path in (*sorted(HERE.glob("*.py")), *sorted(HERE.glob("labs/*/*.py")))
    if path.stem not in ("__main__", "prepare") and "__main__" in path.read_text(encoding="utf-8")
}


def listed(known: dict[str, Path]) -> str:
    """A line for each: its name, and the first line of its file."""
    firsts = {name: path.read_text(encoding="utf-8").partition("\n")[0] for name, path in known.items()}
    return "\n".join(f"    {name:<30}" + first.strip('"') for name, first in firsts.items())


def main() -> None:
    """What `nanoheads` runs."""
    sys.path.insert(0, str(HERE))
    sys.argv[0] = "nanoheads"  # python -m nanoheads, too
    from common.config import cli

    cli(run)


def run(argv: list[str]) -> int:
    """Runs the command that the first argument names, as a program of its own."""
    from common.errors import UserError, nearest
    from common.places import corpora

    name, *arguments = argv or ["--help"]
    kind, known = "command", COMMANDS
    if name == "prepare":
        kind, known = "corpus", corpora()
        name, *arguments = arguments or ["--help"]
    if name in ("-h", "--help"):
        print(__doc__.replace("COMMANDS", f"{listed(COMMANDS)}\n\ncorpora\n\n{listed(corpora())}"))
        return 0
    if name == "--version":
        print(f"nanoheads {__version__}")
        return 0
    if name not in known:
        raise UserError(f"unknown {kind} {name!r}{nearest(name, known) or ':'} use {', '.join(known)}")
    sys.argv = [str(known[name]), *arguments]
    runpy.run_path(str(known[name]), run_name="__main__")
    return 0


if __name__ == "__main__":
    main()
