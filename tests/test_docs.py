"""README.md and docs/: links and commands lead somewhere, heads have sections, a page makes a lab."""

import contextlib
import importlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
import torch

from common.config import read_config
from common.places import find, modules
from docs import gallery
from tables.store import Store

REPO = Path(__file__).resolve().parents[1]
TABLES = REPO / "results" / "README.md"  # its commands are those of commit ed9d419
PAGES = sorted([*REPO.glob("*.md"), *REPO.glob("docs/*.md"), *REPO.glob("labs/*/README.md")])
LINK = re.compile(r'(?<!")\]\(([^)#]+)(?:#[^)]*)?\)')  # HEADS["name"](V) is none
# Files that a reader makes by following the page
MADE = {"heads/asinh.py", "config/asinh.py"} | {"labs/dice/config/dice.py", "config/dice.py"}


def ids(page: Path) -> str:
    return page.relative_to(REPO).as_posix()


def commands_in(text: str) -> list[list[str]]:
    """The words of each shell command in a page's code blocks."""
    lines = [line.strip() for line in text.replace("\\\n", " ").splitlines() if line.startswith("    ")]
    out = []
    for line in lines:
        for command in re.split(r"&&|;|\|\|", line):
            try:
                out.append(shlex.split(command, comments=True))
            except ValueError:  # an apostrophe in something that is no command
                continue
    return [words for words in out if words]


LABS = re.findall(r"\]\((\w+)/", (REPO / "labs/README.md").read_text()) if (REPO / "labs").is_dir() else [""]
THERE = all((REPO / "labs" / lab / "__init__.py").is_file() for lab in LABS)
with_labs = pytest.mark.skipif(not THERE, reason="a lab is not there")


@with_labs
@pytest.mark.parametrize("page", [*PAGES, TABLES], ids=ids)
def test_relative_links_lead_somewhere(page):
    links = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link]
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing


@with_labs
@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_commands_name_what_exists(page):
    targets = re.findall(r"^([\w./-]+):", (REPO / "Makefile").read_text(), re.M)
    for words in commands_in(page.read_text(encoding="utf-8")):
        for word in words:
            if re.fullmatch(r"(bench|config|data|docs|heads|labs|tests)/[\w./-]+\.(py|sh)|\w+\.py", word):
                assert find(word).is_file() or word in MADE, words
        if words[0] == "make":
            assert {w for w in words[1:] if "=" not in w} <= {*targets}, words


@cache
def help_of(script: str, measure: str = "") -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        importlib.import_module(Path(script).stem).main([measure, "--help"] if measure else ["--help"])
    return out.getvalue()


@with_labs
def test_flags_of_commands_exist():
    programs = {path.name for path in REPO.glob("*.py")} - {"model.py", "__main__.py", "conftest.py"}
    texts = {page.name: page.read_text(encoding="utf-8") for page in PAGES}
    texts |= {name: help_of(name) for name in programs}
    seen = 0
    for page, text in texts.items():
        for words in commands_in(text):
            script = next((word for word in words if word in programs), None)
            if script is None:
                continue
            flags = [word for word in words[words.index(script) :] if word.startswith("--")]
            measure = next((f for f in flags if f.startswith("--measure=") or f == "--files"), "")
            if measure == "--measure=dice":  # the lab of add_a_lab.md, whose own test runs its commands
                continue
            for name in {re.split(r"[=.]", flag[2:])[0] for flag in flags} - {"help", "measure"}:
                assert re.search(rf"^    {name}:", help_of(script, measure), re.M), (page, words)
                seen += 1
    assert seen > 20


@pytest.mark.parametrize("module", ["heads", *modules("heads").values()])
def test_every_head_and_every_row_has_a_section(module):
    """The core's in docs/heads.md, a lab's in its README.md."""
    home = REPO.joinpath(*module.split("."))
    page = REPO / "docs" / "heads.md" if module == "heads" else home.parent / "README.md"
    folder = REPO / "config" if module == "heads" else home.parent / "config"
    text = page.read_text(encoding="utf-8")
    assert set(re.findall(r"^### `(\w+)`$", text, re.M)) == import_module(module).HEADS.keys()
    files = {path.stem: read_config(path) for path in folder.glob("*.py") if path.stem != "defaults"}
    rows = {name for name, config in files.items() if "head" in config}
    assert rows == set(re.findall(r"\]\((?:\.\./)?config/([\w.]+)\.py\)", text))


def test_curves_are_those_of_the_heads():
    leads = torch.tensor([-2.0, 0.0, 8.0, 12.0], dtype=torch.float64)
    p = leads.exp() / (leads.exp() + gallery.V - 1)
    softmax = gallery.curve(gallery.head_of("baseline")[0], leads)
    torch.testing.assert_close(softmax.p, p)
    torch.testing.assert_close(softmax.slope, 1 - p)


@with_labs
def test_the_walk_names_functions_that_exist():
    text = (REPO / "docs" / "walk.md").read_text(encoding="utf-8")
    files = [REPO / "docs" / link for link in LINK.findall(text) if link.endswith(".py")]
    code = "\n".join(path.read_text(encoding="utf-8") for path in files)
    named = re.findall(r"`(?:\w+\.)?(\w+)\(\)`", text) + re.findall(r"`([A-Z]\w+[a-z])`", text)
    missing = [name for name in named if not re.search(rf"^\s*(?:def|class) {name}\b", code, re.M)]
    assert len(named) > 20 and not missing


# ---- docs/add_a_lab.md -----------------------------------------------------------------------------------


ROOMS = ("common", "config", "data", "evaluate", "heads", "tables", "training")
BUILT_ON = ("labs/sequences", "labs/orders")


def copy_core(to: Path) -> None:
    for path in (
        *REPO.glob("*.py"),
        *(p for room in (*ROOMS, *BUILT_ON) for p in (REPO / room).rglob("*.py")),
    ):
        copy = to / path.relative_to(REPO)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    shutil.copy(REPO / "pyproject.toml", to)


ONE_AFTER_THE_OTHER = """
import importlib, shlex, sys
sys.path[0] = ""
for command in sys.argv[1:]:
    program, *arguments = shlex.split(command)
    assert importlib.import_module(program.removesuffix(".py")).main(arguments) == 0, command
"""


@pytest.mark.skipif(not all((REPO / lab).is_dir() for lab in BUILT_ON), reason=f"without {BUILT_ON}")
def test_the_page_makes_a_lab_that_trains_and_is_measured(tmp_path):
    page = (REPO / "docs" / "add_a_lab.md").read_text(encoding="utf-8")
    files = re.findall(r"^\*\*\d\. [^*]*\*\*, `([\w/.]+)`:\n\n```python\n(.*?)```", page, re.M | re.S)
    assert [name for name, _ in files] == [f"labs/dice/{x}.py" for x in ("prepare", "measure", "config/dice")]
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
