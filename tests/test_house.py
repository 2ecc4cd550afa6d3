"""What the house is made of may fall, and not rise: docs/house.md. The core works without labs/."""

import shutil
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from common import places
from data.open import corpus_of
from docs.house import ROOT, files_of, imported, lines, names_in, programs, tracked

# imports go from right to left
ROOMS = ("common", "heads", "model", "data", "training", "evaluate", "tables", "programs", "labs")


def room(path: Path) -> int:
    """The place of a file's room in ROOMS."""
    first, *rest = path.relative_to(ROOT).parts
    if first == "config":
        first = "common"
    if (first, *rest) == ("training", "text.py"):  # it scores: nothing else of training/ imports it
        first = "evaluate"
    return ROOMS.index("model" if first == "model.py" else first if rest and first in ROOMS else "programs")


def test_imports_go_one_way():
    """From a room to itself and to those on its left."""
    beside = ("tests", "bench", "docs")
    files = [p for p in tracked("*.py") if not {*p.relative_to(ROOT).parts} & {*beside}]
    assert len(files) > 100
    wrong = {
        f"{file.relative_to(ROOT)} imports {other.relative_to(ROOT)}"
        for file in files
        for name in names_in(file)
        for other in files_of(name)
        if room(other) > room(file)
    }
    assert not wrong


def test_the_core_and_its_tests_import_no_lab():
    """So each lab can be deleted: what is not imported by name is found by a look into labs/."""
    files = [p for p in tracked("*.py") if p.relative_to(ROOT).parts[0] not in ("labs", "docs", "bench")]
    assert {"train.py", "test_house.py", "softmax.py"} <= {path.name for path in files}
    assert [path for path in files if any(name.startswith("labs") for name in names_in(path))] == []


def test_programs_on_top_and_what_a_training_imports():
    assert len(programs()) <= 8
    files = {path for path in imported("train.py") if "heads" not in path.parts}  # each head may have a file
    assert len(files) <= 32 and sum(map(lines, files)) <= 5000  # the text task and its scoring among them


def test_no_file_beside_a_program_hides_a_package():
    """`python labs/LAB/program.py` looks for modules beside the program first: a tokenizers.py there would be
    the `tokenizers` that it imports."""
    packages = packages_distributions().keys()
    programs = [path for path in tracked("*.py") if 'if __name__ == "__main__"' in path.read_text("utf-8")]
    folders = {path.parent for path in programs} - {ROOT}
    assert len(folders) > 10
    hidden = [p for folder in folders for p in folder.glob("*.py") if p.stem in packages]
    assert hidden == []


# ---- without labs ----------------------------------------------------------------------------------------


def test_without_labs_the_tests_of_the_core_are_found_and_run(tmp_path):
    for path in tracked("*"):
        if path.relative_to(ROOT).parts[0] not in ("labs", "results"):
            copy = tmp_path / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
    some = "test_another_trunk_trains_from_the_command_line"
    command = [sys.executable, *"-m pytest -q -p no:cacheprovider --assert=plain tests -k".split(), some]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "error" not in done.stdout, done.stdout[-3000:]


def test_a_corpus_is_found_in_data_and_in_a_lab(tmp_path, monkeypatch):
    for folder in ("data/text", "labs/mine", "labs/no_corpus"):
        (tmp_path / folder).mkdir(parents=True)
    for folder in ("data/text", "labs/mine"):
        (tmp_path / folder / "prepare.py").touch()
    monkeypatch.setattr(places, "CODE", tmp_path)
    assert list(places.corpora()) == ["mine", "text"]
    with pytest.raises(ValueError, match="mine, text"):
        corpus_of("min")
    (tmp_path / "labs/text").mkdir()
    (tmp_path / "labs/text/prepare.py").touch()
    with pytest.raises(ValueError, match="data/text"):
        places.corpora()


def test_a_row_has_its_commit_in_a_checkout_of_another_user(monkeypatch):
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    assert len(places.commit().removesuffix("+")) == 40
