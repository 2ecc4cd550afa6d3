"""What the house is made of may fall, and not rise: docs/house.md."""

from docs.house import imported, lines, programs


def test_programs_on_top():
    assert len(programs()) <= 9


def test_what_a_training_imports():
    files = imported("train.py")
    assert len(files) <= 47 and sum(map(lines, files)) <= 6900
    assert not [path for path in files if "labs" in path.parts]
