"""What the house is made of may fall, and not rise: docs/house.md."""

from docs.house import ROOT, imported, lines, programs


def test_programs_on_top():
    assert len(programs()) <= 8


def test_what_a_training_imports():
    files = {path for path in imported("train.py") if "heads" not in path.parts}  # each head may have a file
    assert len(files) <= 29 and sum(map(lines, files)) <= 4600
    assert not [path for path in files if path.is_relative_to(ROOT / "labs")]
