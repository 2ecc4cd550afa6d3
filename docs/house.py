"""What the house is made of: the figures of docs/house.md.

    python docs/house.py

Imports are read from the code, those inside functions too, and not executed.
"""

import ast
import io
import subprocess
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


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


def code_lines(path: Path) -> int:
    """Lines that are neither blank nor comment nor docstring."""
    text = path.read_text(encoding="utf-8")
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    tokens = [t for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type not in skipped]
    code = {n for t in tokens[:-1] for n in range(t.start[0], t.end[0] + 1)}
    for node in ast.walk(ast.parse(text)):
        match getattr(node, "body", None):
            case [ast.Expr(ast.Constant(str())) as doc, *_]:
                code -= {*range(doc.lineno, (doc.end_lineno or doc.lineno) + 1)}
    return len(code)


def rooms() -> dict[str, int]:
    """Lines of code of the core, with config, bench and docs, and of the largest lab; lines of the tests."""
    core, labs, tests = 0, Counter[str](), 0
    for path in tracked("*.py"):
        parts = path.relative_to(ROOT).parts
        if "tests" in parts:
            tests += lines(path)
        elif parts[0] == "labs":
            labs[parts[1]] += code_lines(path)
        else:
            core += code_lines(path)
    (largest,) = labs.most_common(1)
    return {
        "core, lines of code": core,
        f"the largest lab, {largest[0]}": largest[1],
        "labs, lines of code": labs.total(),
        "tests, lines": tests,
    }


def figures() -> dict[str, str]:
    """Each figure of the page, by its name."""
    training = imported("train.py")
    size = sum(path.stat().st_size for path in tracked("results/*"))
    return {
        "programs on top": f"{len(programs())}",
        "files that train.py imports": f"{len(training)}",
        "their lines": f"{sum(map(lines, training)):,}",
        **{room: f"{count:,}" for room, count in rooms().items()},
        "tracked results": f"{size / 1e6:.1f} MB",
    }


if __name__ == "__main__":
    for name, value in figures().items():
        print(f"{name:30} {value:>10}")
