"""nanoHeads' commands, one name before all: `nanoheads train config/baseline.py` of an installed nanoHeads.

    nanoheads COMMAND [arguments]       a command; --help after it says more
    nanoheads prepare CORPUS [...]      the token files of a corpus; --help after it says more
    nanoheads labs/LAB/PROGRAM [...]    a program of a lab, such as labs/images/sample
    nanoheads data/grammar/score MODEL  how far a model of anybody's is from the known language
    nanoheads --version

In a checkout `python train.py ...` is the same. Config files are found from the current folder, else among
nanoHeads' own. Prepared data go to data/ and runs to out/ of the current folder.

Some commands need more packages than a training. pip install "nanoheads[EXTRA]" adds them, and EXTRA is

    tables      eval_diversity, table and report
    hub         data sets and models of the Hugging Face hub; export
    images      scikit-learn's digits; embeddings
    bayes       the Bayesian projection
    wandb, trackio, mauve       these trackers, and the column MAUVE of eval_diversity
    all         all of these
"""

import difflib
import runpy
import sys
from pathlib import Path

from nanoheads import __version__

HERE = Path(__file__).resolve().parent
NO_COMMANDS = ("__init__", "__main__", "model", "truth")
COMMANDS = {path.stem: path for path in sorted(HERE.glob("*.py")) if path.stem not in NO_COMMANDS}
CORPORA = {path.parent.name: path for home in ("data", "labs") for path in HERE.glob(f"{home}/*/prepare.py")}
INNER = (path for pattern in ("labs/*/*.py", "data/*/score.py") for path in HERE.glob(pattern))
PROGRAMS = {path.relative_to(HERE).with_suffix("").as_posix(): path for path in INNER}


def described(known: dict[str, Path]) -> str:
    """A line for each: its name, and the first line of its file's docstring."""
    lines = []
    for name, path in known.items():
        with path.open(encoding="utf-8") as file:
            says = file.readline().strip('"\n ')
        lines.append(f"    {name:<20}{says}")
    return "\n".join(lines)


def main() -> None:
    """Runs the command that the first argument names, as a program of its own."""
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help") or [name, *arguments] in (["prepare", "-h"], ["prepare", "--help"]):
        print(__doc__, "commands", described(COMMANDS), "", "corpora", described(CORPORA), sep="\n")
        return
    if name == "--version":
        print(f"nanoheads {__version__}")
        return
    kind, known = "command", COMMANDS | PROGRAMS
    if name == "prepare":
        kind, known = "corpus", CORPORA
        name, *arguments = arguments or [""]
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        plain = ", ".join(name for name in sorted(known) if "/" not in name)
        hint = f"did you mean {near[0]}?" if near else f"use {plain}"
        print(f"nanoheads: error: unknown {kind} {name!r}: {hint}", file=sys.stderr)
        sys.exit(2)
    sys.argv = [str(known[name]), *arguments]
    sys.path.insert(0, str(HERE))
    runpy.run_path(str(known[name]), run_name="__main__")


if __name__ == "__main__":
    main()
