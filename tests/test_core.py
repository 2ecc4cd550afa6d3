"""The core never imports a lab: without labs/ all else works."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from common import places
from data.open import corpus_of
from docs.house import tracked

ROOT = Path(__file__).resolve().parents[1]


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


def test_a_row_has_its_commit_in_a_checkout_of_another_user(monkeypatch):
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    assert len(places.commit().removesuffix("+")) == 40
