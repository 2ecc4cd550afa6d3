"""nanoHeads' commands, one name before all: `nanoheads train config/baseline.py` of an installed nanoHeads.

    nanoheads COMMAND [arguments]       train, sample, augment, eval_diversity, eval_orders,
                                        tune, table, frontier, report, export, classify or
                                        classify_table; --help after it says more
    nanoheads prepare CORPUS [...]      wikitext103, text, grammar, demo, or one of a lab: synthetic,
                                        image_tokens, mazes or climbs
    nanoheads labs/LAB/PROGRAM [...]    a lab's own program, such as labs/images/sample

In a checkout `python train.py ...` is the same. Config files are found from the current folder, else among
nanoHeads' own. Prepared data go to data/ and runs to out/ of the current folder.
"""

import difflib
import runpy
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
COMMANDS = {path.stem: path for path in sorted(HERE.glob("*.py")) if path.stem not in ("__main__", "model")}
CORPORA = {path.parent.name: path for home in ("data", "labs") for path in HERE.glob(f"{home}/*/prepare.py")}
LABS = {path.relative_to(HERE).with_suffix("").as_posix(): path for path in HERE.glob("labs/*/*.py")}


def main() -> None:
    """Runs the command that the first argument names, as a program of its own."""
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print(__doc__)
        return
    kind, known = "command", COMMANDS | LABS
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
