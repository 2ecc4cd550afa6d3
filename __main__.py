"""nanoHeads: a GPT whose output head and generation order are choices.

    nanoheads COMMAND [arguments]       --help after it says more; below each stands an example

COMMANDS

labs/LAB/PROGRAM is a program of a lab, such as labs/images/sample. In a checkout `python train.py ...` is
`nanoheads train ...`. Config files are found from the current folder, else among nanoHeads' own. Prepared
data go to data/ and runs to out/ of the current folder. --version says which nanoHeads this is.

Some commands need more packages than a training, and name one that is missing. In a checkout
pip install ".[EXTRA]" adds them, and EXTRA is

    tables      eval_diversity, table and report
    hub         data sets and models of the Hugging Face hub; export
    images      scikit-learn's digits; embeddings
    bayes       the Bayesian projection
    wandb, mauve                the tracker, and the column MAUVE of eval_diversity
    all         all of these
"""

import re
import runpy
import sys
from pathlib import Path

from nanoheads import __version__

HERE = Path(__file__).resolve().parent
# what one wants to do -> the programs for it
GROUPS = {
    "train": ("prepare", "train", "augment"),
    "write": ("sample",),
    "compare": ("eval_diversity", "table", "report", "truth score"),
    "publish": ("export",),
}
NO_COMMANDS = ("__init__", "__main__", "model", "truth")
COMMANDS = {path.stem: path for path in sorted(HERE.glob("*.py")) if path.stem not in NO_COMMANDS}
CORPORA = {
    path.parent.name: path
    for home in ("data/*", "labs/*", "labs/*/*")
    for path in HERE.glob(f"{home}/prepare.py")
}
PROGRAMS = {
    path.relative_to(HERE).with_suffix("").as_posix(): path
    for path in HERE.glob("labs/*/*.py")
    if "__main__" in path.read_text(encoding="utf-8")
}
SHORT = {"truth score": "labs/known_language/score", "export": "labs/transformers/export"}
PROGRAMS |= {name: PROGRAMS[program] for name, program in SHORT.items() if program in PROGRAMS}


def described(known: dict[str, Path]) -> str:
    """For each its name and the first line of its file's docstring; below, the first command in there."""
    lines = []
    for name, path in known.items():
        with path.open(encoding="utf-8") as file:
            says = file.readline().strip('"\n ')
            command = next((line.strip() for line in file if line.strip().startswith("python ")), "")
        program, *_ = re.split(r" {3}| \[", command)  # without a remark, and what may be left out
        lines += [f"    {name:<20}{says}", f"        nanoheads {name}{program.partition('.py')[2]}"]
    return "\n".join(lines)


def grouped() -> str:
    """All commands by what one wants to do, each with an example; the corpora."""
    corpora = f"The token files of a corpus: {', '.join(sorted(CORPORA))}"
    prepare = f"    {'prepare':<20}{corpora}\n        nanoheads prepare wikitext103"
    parts = []
    for purpose, names in GROUPS.items():
        programs = described({n: (COMMANDS | PROGRAMS)[n] for n in names if n in COMMANDS | PROGRAMS})
        parts.append("\n".join([purpose, *([prepare] if "prepare" in names else []), programs]))
    return "\n\n".join(parts)


def main() -> None:
    """What `nanoheads` runs."""
    sys.path.insert(0, str(HERE))
    from common.config import cli

    cli(run)


def run(argv: list[str]) -> int:
    """Runs the command that the first argument names, as a program of its own."""
    name, *arguments = argv or ["--help"]
    if name in ("-h", "--help"):
        print(__doc__.replace("COMMANDS\n", grouped() + "\n"))
        return 0
    if name == "prepare" and arguments[:1] in ([], ["-h"], ["--help"]):
        print("nanoheads prepare CORPUS [--key=value ...]: the token files of a corpus\n")
        print(described(CORPORA).replace("nanoheads ", "nanoheads prepare "))
        return 0
    if name == "--version":
        print(f"nanoheads {__version__}")
        return 0
    if [name, *arguments[:1]] == ["truth", "score"]:
        name, *arguments = "truth score", *arguments[1:]
    kind, known = "command", COMMANDS | PROGRAMS
    if name == "prepare":
        kind, known = "corpus", CORPORA
        name, *arguments = arguments
    if name not in known:
        plain = ", ".join(name for name in sorted(known) if "/" not in name)
        raise ValueError(f"unknown {kind} {name!r}: use {plain}")
    sys.argv = [str(known[name]), *arguments]
    runpy.run_path(str(known[name]), run_name="__main__")
    return 0


if __name__ == "__main__":
    main()
