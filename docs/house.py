"""What the house is made of: the figures of docs/house.md.

    python docs/house.py

Imports are read from the code, those inside functions too, and not executed.
"""

import ast
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = {
    "labs": "labs",
    "tests": "tests",
    "bench": "bench and docs",
    "docs": "bench and docs",
}  # else the core


def tracked(pattern: str) -> list[Path]:
    """The files that git tracks, or will."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", pattern]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def lines(path: Path) -> int:
    return path.read_text(encoding="utf-8").count("\n")


def programs() -> list[str]:
    """Python files on top."""
    return sorted(path.stem for path in tracked("*.py") if path.parent == ROOT and path.stem != "conftest")


def imported(start: str) -> set[Path]:
    """Our files that a program imports, itself among them."""
    seen: set[Path] = set()
    todo = [ROOT / start]
    while todo:
        path = todo.pop()
        if path not in seen:
            seen.add(path)
            todo += [file for name in names_in(path) for file in files_of(name)]
    return seen


def names_in(path: Path) -> list[str]:
    """The modules that a file names in its imports."""
    package, names = path.relative_to(ROOT).parent.parts, []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return names


def files_of(name: str) -> list[Path]:
    """Our files of a module and of the packages that it stands in."""
    parts = name.split(".")
    places = (ROOT.joinpath(*parts[: i + 1]) for i in range(len(parts)))
    files = (file for place in places for file in (place.with_suffix(".py"), place / "__init__.py"))
    return [file for file in files if file.is_file()]


def rooms() -> dict[str, int]:
    """Lines of code by room."""
    out = dict.fromkeys(("core", *ROOMS.values()), 0)
    for path in tracked("*.py"):
        first = path.relative_to(ROOT).parts[0]
        out[ROOMS.get(first, "core")] += lines(path)
    return out


def figures() -> dict[str, str]:
    """Each figure of the page, by its name."""
    training = imported("train.py")
    size = sum(path.stat().st_size for path in tracked("results/*"))
    return {
        "programs on top": f"{len(programs())}",
        "files that train.py imports": f"{len(training)}",
        "their lines": f"{sum(map(lines, training)):,}",
        "with training/text.py, by name": f"{len(training | imported('training/text.py'))}",
        **{f"lines, {room}": f"{count:,}" for room, count in rooms().items()},
        "tracked results": f"{size / 1e6:.1f} MB",
    }


if __name__ == "__main__":
    for name, value in figures().items():
        print(f"{name:30} {value:>10}")
