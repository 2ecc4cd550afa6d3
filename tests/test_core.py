"""The core never imports a lab: without labs/ all else works."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from data import corpus
from docs.house import names_in, tracked

ROOT = Path(__file__).resolve().parents[1]
BESIDE = ("labs", "tests", "docs", "bench", "results", "out", ".venv")  # what is not the core
CORE = sorted(
    path
    for path in (*ROOT.glob("*.py"), *ROOT.glob("*/**/*.py"))
    if path.relative_to(ROOT).parts[0] not in BESIDE
)
names = lambda path: path.relative_to(ROOT).as_posix()


def test_the_core_and_its_tests_import_no_lab():
    """So each lab can be deleted: what is not imported by name is found by a look into labs/."""
    files = [*CORE, *(ROOT / "tests").glob("*.py")]
    assert {"train.py", "heads/softmax.py", "evaluate/text.py"} <= {names(path) for path in files}
    assert [names(path) for path in files if any(name.startswith("labs") for name in names_in(path))] == []


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
    monkeypatch.setattr(corpus, "CODE", tmp_path)
    assert list(corpus.corpora()) == ["mine", "text"]
    with pytest.raises(ValueError, match="mine, text"):
        corpus.corpus_of("min")
