"""An installed nanoHeads: what pyproject.toml puts into the package, run from somebody's empty folder; and
docs/tour.ipynb, run in a checkout and from an installed nanoHeads alone."""

import ast
import compileall
import importlib
import json
import re
import shutil
import subprocess
import sys
import tomllib
from email import message_from_string
from email.message import Message
from pathlib import Path

import nbformat
import pytest

from common.errors import PIP_NAMES
from docs.house import tracked
from nanoheads import __version__ as VERSION

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
OURS = [extra for extra in EXTRAS if extra not in ("all", "test", "dev", "site")]
OPTIONAL = [re.match(r"[\w-]+", need)[0] for extra in OURS for need in EXTRAS[extra]]
BASE = [re.match(r"[\w-]+", need)[0] for need in PYPROJECT["project"]["dependencies"]]


def hatchling(kind: str, checkout: Path, to: Path) -> Path:
    """The sdist or wheel that the packager makes of a checkout."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(to)]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (made,) = to.glob("*.tar.gz" if kind == "sdist" else "*.whl")
    return made


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with the package in it, and nothing else: a wheel, made of the sdist alone."""
    made, unpacked, site = (tmp_path_factory.mktemp(name) for name in ("made", "unpacked", "site"))
    shutil.unpack_archive(hatchling("sdist", ROOT, made), unpacked, filter="data")
    (checkout,) = unpacked.iterdir()
    shutil.unpack_archive(hatchling("wheel", checkout, made), site, "zip")
    compileall.compile_dir(site, quiet=1)  # once, not by each command
    return site


@pytest.fixture(scope="module")
def metadata(site) -> Message:
    """What a package index is told."""
    (file,) = site.glob("nanoheads-*.dist-info/METADATA")
    return message_from_string(file.read_text(encoding="utf-8"))


SOURCE = "--source=train=2000 validation=500 test=500 nouns=9 verbs=9"

# Reads commands, and runs each in a fork of itself: importing torch takes longer than most
FORKS = """
import json, os, sys
sys.path[0] = sys.argv[1]
import torch._dynamo
for line in sys.stdin:
    folder, absent, sys.argv[1:] = json.loads(line)
    if not os.fork():
        os.chdir(folder)
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
        sys.stdin = open(os.devnull)
        sys.modules.update(dict.fromkeys(absent))
        from nanoheads.__main__ import main
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        sys.stdout.flush()
        os._exit(code)  # Python's own end visits all of torch
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
os._exit(0)
"""


@pytest.fixture(scope="module")
def forks(site):
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with subprocess.Popen([sys.executable, "-B", "-c", FORKS, str(site)], **pipes) as process:
        yield process
        process.stdin.close()


@pytest.fixture
def nanoheads(forks, tmp_path):
    """Runs `nanoheads` with arguments in an empty folder, where the packages `without` are not installed."""

    def run(*arguments, without=()):
        names = {package: module for module, package in PIP_NAMES.items()}
        absent = [names.get(package, package) for package in without]
        print(json.dumps([str(tmp_path), absent, arguments]), file=forks.stdin, flush=True)
        code = int(forks.stdout.readline())
        out, err = ((tmp_path / name).read_text() for name in ("stdout", "stderr"))
        return subprocess.CompletedProcess(arguments, code, out, err)

    return run


def test_commands_and_rooms_are_installed_and_nothing_that_git_ignores(site):
    programs = {path.name for path in (*ROOT.glob("*.py"), *ROOT.glob("nanoheads/*.py"))}
    assert {path.name for path in (site / "nanoheads").glob("*.py")} == programs - {"conftest.py"}
    (scripts,) = site.glob("nanoheads-*.dist-info/entry_points.txt")
    assert scripts.read_text() == "[console_scripts]\nnanoheads = nanoheads.__main__:main\n"
    rooms = {path.parent for path in (site / "nanoheads").glob("*/*.py")}
    assert {room.name for room in rooms} >= {"heads", "evaluate", "common", "config"}
    installed = {path.relative_to(site / "nanoheads") for path in site.glob("nanoheads/*/**/*.*")}
    installed = {path for path in installed if "__pycache__" not in path.parts}
    assert installed <= {path.relative_to(ROOT) for path in tracked("*/*")}
    assert {path.name for path in site.iterdir()} == {"nanoheads", f"nanoheads-{VERSION}.dist-info"}


def test_the_version_stands_in_one_place(site, metadata):
    """nanoheads.__version__: no other file names it but the changelog and the citation, which agree."""
    assert metadata["Version"] == VERSION and "version" not in PYPROJECT["project"]
    assert f"## {VERSION}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\nversion: {VERSION}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_the_package_is_a_library(site, tmp_path):
    """Nothing is imported before a name is used, then torch and, of ours, heads/ and model.py alone."""
    code = f"""import sys; sys.path[0] = {str(site)!r}
import nanoheads
assert {{*nanoheads.__all__}} <= {{*dir(nanoheads)}} and nanoheads.__version__ == {VERSION!r}
assert not [name for name in sys.modules if name.startswith(("torch", "numpy", "nanoheads."))]
from nanoheads import HEADS, linear_loss, log_probs
ours = lambda: {{name.split(".")[1] for name in sys.modules if name.startswith("nanoheads.")}}
assert ours() == {{"heads"}} and not {{"heads", *{OPTIONAL!r}}} & {{*sys.modules}}
import torch
loss = linear_loss(torch.ones(2, 3), torch.zeros(4, 3), torch.tensor([0, 3]), head="entmax15")
assert 0.66 < loss < 0.67 and "entmax15" in HEADS and not hasattr(nanoheads, "train")
from nanoheads import GPT, GPTConfig, Head, Targets
gpt = GPT(GPTConfig(vocab_size=9, block_size=4, n_layer=1, n_head=2, n_embd=8))
hidden = gpt(torch.tensor([[1, 2, 3]]))
assert log_probs(hidden, gpt.wte.weight[:9]).exp().sum(-1).sub(1).abs().max() < 1e-5
assert issubclass(HEADS["softmax"], Head) and Targets.single(torch.ones(2)).token.shape == (2,)
assert ours() == {{"heads", "model"}} and not {{"heads", "model"}} & {{*sys.modules}}"""
    done = subprocess.run([sys.executable, "-B", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (site / "nanoheads" / "py.typed").is_file()


def test_the_known_language_is_a_library(site, tmp_path):
    """It needs the base packages alone, and no module of ours stands beside other people's."""
    code = f"""import sys; sys.path[0] = {str(site)!r}
sys.modules.update(dict.fromkeys({[name for name in OPTIONAL if name != "scikit-learn"]!r}))
from nanoheads.truth import Language
lang = Language(test=500, nouns=9, verbs=9)
assert lang.score(lang.log_probs)["tv"] < 1e-9
try:
    lang.fill_log_probs([[-1]])
except ImportError as error:
    assert "scipy" in str(error)
del sys.modules["scipy"]
assert lang.fill_log_probs([[-1]]).exp().sum().sub(1).abs() < 1e-9
assert not {{"data", "evaluate", "common", "heads"}} & {{*sys.modules}}"""
    done = subprocess.run([sys.executable, "-B", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_trains_and_samples_with_the_base_packages_alone(nanoheads, site, tmp_path):
    before = sorted(site.rglob("*"))
    size = ["--n_layer=1", "--n_embd=16", "--n_head=2", "--max_steps=2", "--batch_size=2", "--device=cpu"]
    done = nanoheads("train", "config/baseline.py", "config/tiny.py", SOURCE, *size, without=OPTIONAL)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "baseline-tiny" / "last").is_dir()
    assert (tmp_path / "data" / "grammar").is_dir()
    done = nanoheads("sample", "out/baseline-tiny", "--length=3", without=OPTIONAL)
    assert done.returncode == 0 and "3 tokens" in done.stdout + done.stderr
    assert sorted(site.rglob("*")) == before, "nothing is written beside the code"


@pytest.mark.parametrize(
    "arguments, packages",
    [
        ("eval_diversity out/x", "scipy tabulate pandas"),
        ("table config/tables/heads.py", "scipy tabulate pandas optuna"),
        ("report results/heads", "jinja2 scipy tabulate pandas"),
        ("train config/bayes_gpt.py config/tiny.py", "torchbnn"),
        ("train config/baseline.py config/tiny.py --wandb", "wandb"),
    ],
)
def test_an_absent_package_is_one_line_with_its_name(nanoheads, arguments, packages):
    small = [SOURCE] if arguments.startswith("train") else []
    done = nanoheads(*arguments.split(), *small, without=OPTIONAL)
    lines = [f"error: {name} is not installed: pip install {name}\n" for name in packages.split()]
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert any(done.stderr.endswith(line) for line in lines), done.stderr


def test_names_of_commands(nanoheads):
    done = nanoheads()
    for name in ("train", "labs/transformers/export", "mazes"):
        assert f"\n    {name:<30}" in done.stdout
    for words, code, says in (
        ("", 0, "train"),
        ("--version", 0, f"nanoheads {VERSION}\n"),
        ("trian", 2, "'trian'"),
        ("prepare wikitext", 2, "'wikitext'"),
        ("prepare grammar --help", 0, "--source"),
    ):
        done = nanoheads(*words.split())
        assert done.returncode == code and says in (done.stderr if code else done.stdout)


def test_the_lock_has_all_that_the_project_names():
    locks = ("requirements.lock", "requirements-dev.lock")
    lock = "".join((ROOT / name).read_text(encoding="utf-8") for name in locks).lower().replace("_", "-")
    wanted = {*BASE, *OPTIONAL} - {"mauve-text"}  # which no test needs
    assert [name for name in sorted(wanted) if f"\n{name.lower()}==" not in lock] == []


# ---- the tour --------------------------------------------------------------------------------------------


DOCS = ROOT / "docs"


@pytest.fixture
def tour():
    return nbformat.read(DOCS / "tour.ipynb", as_version=4)


def test_is_a_notebook_without_errors_whose_links_lead_somewhere(tour):
    nbformat.validate(tour)
    text = "\n".join(cell.source for cell in tour.cells if cell.cell_type == "markdown")
    links = re.findall(r"\]\(([\w./]+)\)", text)
    assert len(links) >= 3 and all((DOCS / link).is_file() for link in links)
    outputs = [output for cell in tour.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [o for o in outputs if o.output_type == "error"]
    assert (DOCS / "tour.ipynb").stat().st_size < 500_000


@pytest.mark.parametrize("program", ["tour", *sorted(path.stem for path in ROOT.glob("bench/*.py"))])
def test_what_slow_tests_alone_run_finds_what_it_imports(tour, program):
    cells = [cell.source for cell in tour.cells if cell.cell_type == "code"]
    cells = [re.sub(r"(?m)^( *)%.*", r"\1pass", source) for source in cells]
    source = "\n".join(cells) if program == "tour" else (ROOT / f"bench/{program}.py").read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and [*ROOT.glob(node.module.split(".")[0] + "*")]:
            module = importlib.import_module(node.module)
            assert not [name.name for name in node.names if not hasattr(module, name.name)], node.module


@pytest.mark.slow
@pytest.mark.parametrize("place", ["checkout", "installed"])
def test_runs(tour, tmp_path, monkeypatch, request, place):
    from nbclient import NotebookClient

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    settings, at = tour.cells[1], DOCS
    for long, short in {"STEPS = 400": "STEPS = 2", "WORDS = 400_000": "WORDS = 20_000"}.items():
        assert long in settings.source
        settings.source = settings.source.replace(long, short)
    if place == "checkout":
        settings.source = settings.source.replace('"out/tour"', repr(str(tmp_path / "out" / "tour")))
    else:
        at = tmp_path
        monkeypatch.setenv("PYTHONPATH", str(request.getfixturevalue("site")))
        settings.source += f"\nassert {str(ROOT)!r} not in nanoheads.__file__"
    NotebookClient(tour, timeout=600, resources={"metadata": {"path": str(at)}}).execute()
    pictures = [o for c in tour.cells for o in c.get("outputs", []) if "image/png" in o.get("data", {})]
    assert len(pictures) == 4 and (tmp_path / "out" / "tour" / "table.jsonl").is_file()
