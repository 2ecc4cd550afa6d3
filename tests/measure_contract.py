"""The contract of a measure: what holds for each of the labs', and for one of your own.

    from tests.measure_contract import *

    @pytest.fixture(scope="module")
    def example(run):
        return Example("truth", [run], ["--texts=8"], "--texts=9")

runs all of it for a small table of these runs.
"""

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

import table
from common.errors import UserError
from tables.find import find_measure
from tables.store import Row, Store
from tests.fixtures import scale


class Example(NamedTuple):
    measure: str
    runs: list[Path]  # out folders
    flags: list[str]
    other: str  # flags with which no row can stand beside these, the first of a setting


def measure_into(out: Path, example: Example, *flags: str, runs: list[Path] | None = None) -> int:
    paths = [str(run) for run in runs or example.runs]
    return table.main([f"--measure={example.measure}", *paths, *example.flags, *flags, f"--out={out}"])


def rows_of(out: Path) -> list[Row]:
    (name,) = Store(out.with_suffix(".jsonl")).measures()
    return Store(out.with_suffix(".jsonl")).rows(name)


@pytest.fixture(scope="module")
def measured(example, tmp_path_factory) -> Path:
    """The `out` of the table. Read only."""
    out = tmp_path_factory.mktemp(example.measure) / "table"
    assert measure_into(out, example) == 0
    return out


@pytest.fixture
def table_copy(measured, tmp_path) -> Path:
    return shutil.copytree(measured.parent, tmp_path / "copy") / measured.name


def test_only_a_run_that_changed_is_measured_anew(example, table_copy, tmp_path, monkeypatch):
    session, asked = find_measure(example.measure).session, {}
    numbers = session.numbers
    monkeypatch.setattr(session, "numbers", lambda self, s: asked.setdefault(s.name, numbers(self, s)))
    before = table_copy.with_suffix(".jsonl").read_bytes()
    assert measure_into(table_copy, example) == 0 and not asked
    assert table_copy.with_suffix(".jsonl").read_bytes() == before
    first, *others = example.runs
    changed = shutil.copytree(first, tmp_path / first.name)
    for folder in ("best", "last"):
        if (changed / folder).is_dir():
            scale(changed / folder, 1.5)
    old = {row["name"]: row for row in rows_of(table_copy)}
    assert measure_into(table_copy, example, runs=[changed, *others]) == 0
    new = {row["name"]: row for row in rows_of(table_copy)}
    (name,) = asked
    assert any(new[name][key] != old[name][key] for key in asked[name])
    assert old.keys() == new.keys() and all(new[other] == old[other] for other in old.keys() - {name})


def test_what_cannot_stand_in_one_table_is_refused(example, table_copy, trained, tmp_path):
    before = table_copy.with_suffix(".jsonl").read_bytes()
    with pytest.raises(UserError, match=example.other.strip("-").split("=")[0]):
        measure_into(table_copy, example, *example.other.split())
    with pytest.raises(UserError):  # a run on another corpus
        measure_into(table_copy, example, runs=[*example.runs, trained])
    assert table_copy.with_suffix(".jsonl").read_bytes() == before


def test_a_view_is_made_of_rows_alone(example, measured, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = measured.with_suffix(".md").read_text(encoding="utf-8")
    view = find_measure(example.measure).view(rows_of(measured))
    assert view.markdown.strip() in page
    assert all(f"{row['row']}" in page for row in rows_of(measured) if not row.get("reference"))
