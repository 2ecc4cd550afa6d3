"""What a command answers before its own imports: --help, and the flags that its configuration refuses."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import heads
import model
from common import places

ROOT = Path(__file__).resolve().parents[1]
NO_COMMANDS = ("__main__.py", "conftest.py", "model.py")
PROGRAMS = [
    *(path.name for path in sorted(ROOT.glob("*.py")) if path.name not in NO_COMMANDS),
    *(
        str(path.relative_to(ROOT))
        for path in sorted([*ROOT.glob("data/*/*.py"), *ROOT.glob("labs/*/*.py")])
        if "Program(" in path.read_text()
    ),
]
REFUSED = [  # what configurations refuse by themselves
    *(
        "train.py --head=nonsense",
        "train.py --trunk=nonsense",
        "train.py --dtype=int7",
        "train.py --labels=x",
    ),
    *("train.py --max_steps=0", "train.py --optimizer=lion", "train.py no_config.py"),
    *("train.py config/mnist.py --head=nonsense", "augment.py --labels=x"),
    "sample.py out/x --temperature=-1",
    *(
        "eval_diversity.py out/x --protocol=x",
        "eval_diversity.py out/x --halves=1",
        "table.py --rows=[]",
        "table.py --jobs=0 config/tables/heads.py",
        "report.py x --prompts=0",
    ),
    *["labs/images/sample.py out/x --grid=8xx"] * (ROOT / "labs" / "images").is_dir(),
]
RUN = """
import json, runpy, sys
for words in json.loads(sys.stdin.read()):
    sys.argv = words
    try:
        runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        code = end.code
    heavy = [name for name in ("torch", "transformers", "scipy") if name in sys.modules]
    print(json.dumps([words, code, heavy]), file=sys.stderr)
    if heavy:
        break
"""


def test_help_and_refused_flags_do_not_import_torch():
    """All in one process: nothing of it is imported at the end either."""
    asked = [[p, flag] for p in PROGRAMS for flag in ("--help", "--nonsense=1")]
    asked += [line.split() for line in REFUSED]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}){RUN}"],
        cwd=ROOT,
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=300,
    )
    said = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("[")]
    assert [(words, heavy) for words, _, heavy in said if heavy] == []
    assert [(w, code) for w, code, _ in said] == [(w, 0 if "--help" in w else 2) for w in asked], done.stderr


@pytest.mark.parametrize("program", PROGRAMS)
def test_nothing_is_imported_above_the_door_that_is_not_needed_there(program):
    """The Program stands above the command's own imports."""
    body = ast.parse((ROOT / program).read_text(encoding="utf-8")).body
    calls = [getattr(getattr(node, "value", None), "func", None) for node in body]
    at = next(i for i, call in enumerate(calls) if isinstance(call, ast.Name) and call.id == "Program")
    above = [node for node in body[:at] if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {getattr(node, "module", None) or node.names[0].name for node in above}
    assert not {name.partition(".")[0] for name in names} & {"torch", "numpy", "heads", "model", "tqdm"}


@pytest.mark.parametrize("package, code, who", [("torch", 2, "train.py: "), ("pydantic", 1, "")])
def test_a_package_that_is_missing_is_said_before_flags_are_read(package, code, who):
    run = f"import sys, runpy; sys.modules[{package!r}] = None; sys.argv = ['train.py', '--nonsense']; "
    run += f"sys.path.insert(0, {str(ROOT)!r}); runpy.run_path('train.py', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", run], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == code
    assert done.stderr == f"{who}error: {package} is not installed, which this needs: pip install .\n"


def test_registered_names_are_those_of_the_imported_dicts(monkeypatch):
    core = lambda names, module: [name for name, home in names.items() if home == module]
    assert core(places.heads(), "heads") == list(heads.HEADS)
    assert core(places.trunks(), "model") == list(model.TRUNKS)
    monkeypatch.delitem(sys.modules, "heads")
    monkeypatch.delitem(sys.modules, "model")
    assert core(places.heads(), "heads") == list(heads.HEADS)
    assert core(places.trunks(), "model") == list(model.TRUNKS)


def test_a_head_that_was_registered_by_hand_is_known(monkeypatch):
    monkeypatch.setitem(heads.HEADS, "mine", heads.Softmax)
    assert "mine" in places.heads()
