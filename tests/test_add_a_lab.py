"""docs/add_a_lab.md, followed to the letter in a copy of the core and of the labs that the page builds on."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tables.store import Store

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("common", "config", "data", "evaluate", "heads", "tables", "training")
LABS = ("labs/sequences", "labs/orders")


def copy_core(to: Path) -> None:
    for path in (*ROOT.glob("*.py"), *(p for room in (*ROOMS, *LABS) for p in (ROOT / room).rglob("*.py"))):
        copy = to / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    shutil.copy(ROOT / "pyproject.toml", to)


ONE_AFTER_THE_OTHER = """
import importlib, shlex, sys
sys.path[0] = ""
for command in sys.argv[1:]:
    program, *arguments = shlex.split(command)
    assert importlib.import_module(program.removesuffix(".py")).main(arguments) == 0, command
"""


@pytest.mark.skipif(not all((ROOT / lab).is_dir() for lab in LABS), reason=f"without {LABS}")
def test_the_page_makes_a_lab_that_trains_and_is_measured(tmp_path):
    page = (ROOT / "docs" / "add_a_lab.md").read_text(encoding="utf-8")
    files = re.findall(r"^\*\*\d\. [^*]*\*\*, `([\w/.]+)`:\n\n```python\n(.*?)```", page, re.M | re.S)
    assert [name for name, _ in files] == [
        "labs/dice/prepare.py",
        "labs/dice/measure.py",
        "labs/dice/config/dice.py",
    ]
    copy_core(tmp_path)
    for name, code in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(code, encoding="utf-8")
    commands = re.findall(r"^    (python .*)$", page, re.M)
    train, dice, orders, table = (command.removeprefix("python ") for command in commands)
    script = [f"{train} --device=cpu --dtype=float32", dice, orders, f"{table} --commands"]
    done = subprocess.run(
        [sys.executable, "-c", ONE_AFTER_THE_OTHER, *script],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": ""}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [row] = Store(tmp_path / "out/dice.jsonl").rows("dice")
    assert 0 < row["tv"] < 0.15
    assert done.stdout.count("train.py config/baseline.py config/dice.py") == 3  # the table's, one a seed
    assert "kl next" in (tmp_path / "out/dice_orders.md").read_text()
