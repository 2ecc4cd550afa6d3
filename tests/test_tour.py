"""docs/tour.ipynb, run as a user runs it: in a checkout, and from an installed nanoHeads alone."""

import ast
import importlib
import re
from pathlib import Path

import nbformat
import pytest
from test_install import site  # noqa: F401

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"


@pytest.fixture
def tour():
    return nbformat.read(DOCS / "tour.ipynb", as_version=4)


def test_is_a_notebook_without_errors_whose_links_lead_somewhere(tour):
    nbformat.validate(tour)
    text = "\n".join(cell.source for cell in tour.cells if cell.cell_type == "markdown")
    links = re.findall(r"\]\(([\w./]+)\)", text)
    assert len(links) >= 3 and all((DOCS / link).is_file() for link in links)
    outputs = [output for cell in tour.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [o for o in outputs if o.output_type == "error"]
    assert (DOCS / "tour.ipynb").stat().st_size < 500_000


@pytest.mark.parametrize("program", ["tour", *sorted(path.stem for path in ROOT.glob("bench/*.py"))])
def test_what_slow_tests_alone_run_finds_what_it_imports(tour, program):
    cells = [
        re.sub(r"(?m)^( *)%.*", r"\1pass", cell.source) for cell in tour.cells if cell.cell_type == "code"
    ]
    source = "\n".join(cells) if program == "tour" else (ROOT / f"bench/{program}.py").read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and [*ROOT.glob(node.module.split(".")[0] + "*")]:
            module = importlib.import_module(node.module)
            assert not [name.name for name in node.names if not hasattr(module, name.name)], node.module


@pytest.mark.slow
@pytest.mark.parametrize("place", ["checkout", "installed"])
def test_runs(tour, tmp_path, monkeypatch, request, place):
    from nbclient import NotebookClient

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    settings, at = tour.cells[1], DOCS
    for long, short in {"STEPS = 400": "STEPS = 2", "WORDS = 400_000": "WORDS = 20_000"}.items():
        assert long in settings.source
        settings.source = settings.source.replace(long, short)
    if place == "checkout":
        settings.source = settings.source.replace('"out/tour"', repr(str(tmp_path / "out" / "tour")))
    else:
        at = tmp_path
        monkeypatch.setenv("PYTHONPATH", str(request.getfixturevalue("site")))
        settings.source += f"\nassert {str(ROOT)!r} not in nanoheads.__file__"
    NotebookClient(tour, timeout=600, resources={"metadata": {"path": str(at)}}).execute()
    pictures = [o for c in tour.cells for o in c.get("outputs", []) if "image/png" in o.get("data", {})]
    assert len(pictures) == 4 and (tmp_path / "out" / "tour" / "table.jsonl").is_file()
