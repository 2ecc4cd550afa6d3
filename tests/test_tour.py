"""docs/tour.ipynb, run as a user runs it."""

import re
from pathlib import Path

import nbformat
import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"


@pytest.fixture
def tour():
    return nbformat.read(DOCS / "tour.ipynb", as_version=4)


def test_is_a_notebook_whose_links_lead_somewhere(tour):
    nbformat.validate(tour)
    text = "\n".join(cell.source for cell in tour.cells if cell.cell_type == "markdown")
    links = re.findall(r"\]\(([\w./]+)\)", text)
    assert len(links) >= 3 and all((DOCS / link).is_file() for link in links)
    assert not re.search(r"\\\\[a-z]", text)  # a doubled backslash before a command of TeX is a new line


def test_what_is_saved_in_it_is_no_error(tour):
    outputs = [output for cell in tour.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [o for o in outputs if o.output_type == "error"]
    assert (DOCS / "tour.ipynb").stat().st_size < 500_000


@pytest.mark.slow
def test_runs(tour, tmp_path, monkeypatch):
    from nbclient import NotebookClient

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    settings = tour.cells[1]
    for long, short in {"STEPS = 400": "STEPS = 2", "WORDS = 400_000": "WORDS = 20_000"}.items():
        assert long in settings.source
        settings.source = settings.source.replace(long, short)
    settings.source = settings.source.replace('"out/tour"', repr(str(tmp_path / "tour")))
    NotebookClient(tour, timeout=600, resources={"metadata": {"path": str(DOCS)}}).execute()
    pictures = [o for c in tour.cells for o in c.get("outputs", []) if "image/png" in o.get("data", {})]
    assert len(pictures) == 4
    assert (tmp_path / "tour" / "table.jsonl").is_file()
