"""Defaults < config files in order < flags; a file is parsed, never run; a program's door."""

import os
import runpy
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field, fields
from email.message import Message
from pathlib import Path
from typing import Annotated, Literal
from urllib.error import HTTPError

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common import config as types
from common.config import cli, read, read_config
from common.errors import UserError
from config.defaults import TrainConfig

ROOT = Path(__file__).resolve().parents[1]
SCALE = ("n_embd", "block_size")  # what an overlay says, and a row does not
CONFIGS = sorted([*ROOT.glob("config/*.py"), *ROOT.glob("labs/*/config/*.py")])
CONFIGS = [p for p in CONFIGS if p.stem != "defaults" and "trunk_args" not in read_config(p)]  # of images
OVERLAYS = [p for p in CONFIGS if {*SCALE} & read_config(p).keys()]
ROWS = [p for p in CONFIGS if p not in OVERLAYS]


@dataclass
class Defaults:
    name: str = ""
    steps: types.Positive = 10
    rate: float = 0.5
    fast: bool = False
    prompt: types.Text = "\n"
    head_args: dict = field(default_factory=dict)


@dataclass
class Arguments:
    run: str
    others: list[str]
    which: Literal["best", "last"] = "best"
    rates: list[float] = field(default_factory=[0.5].copy)
    quick: bool = False


@dataclass
class Values:
    positive: types.Positive = 10
    seed: types.Seed = 1
    two: types.AtLeast2 = 2
    number: types.Number = 0.0
    rate: types.NonNegative = 1.0
    share: types.Share = 1.0
    mass: types.PositiveShare = 1.0
    dtype: types.Dtype = "auto"
    which: Literal["best", "last"] = "best"
    fast: bool = False
    text: types.Text = ""
    title: types.RowName = ""
    numbers: list[int] = field(default_factory=list)
    rates: Annotated[list[types.NonNegative], types.Field(min_length=1)] = field(default_factory=[0.5].copy)
    limits: types.Limits = field(default_factory=lambda: [1.0, 2.0])
    space: types.Space = field(default_factory=dict)
    some: dict = field(default_factory=dict)


@pytest.fixture
def file(tmp_path):
    def write(text: str, name: str = "a") -> str:
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        return str(path)

    return write


# ---- reading -----------------------------------------------------------------------------------------------


def test_defaults_give_way_to_files_in_order_and_these_to_flags(file):
    one, two = file("steps = 1\nrate = 0.1\nfast = True\n", "one"), file("rate = 0.2\nsteps = 2\n", "two")
    for argv, want in (
        ([], Defaults(name="run")),
        ([one, two], Defaults("one-two", 2, 0.2, True)),
        ([two, one], Defaults("two-one", 1, 0.1, True)),
        (["--steps=3", one, two], Defaults("one-two", 3, 0.2, True)),  # wherever the flags stand
        ([one, "--fast=False", "--steps=4", "--steps=5"], Defaults("one", 5, 0.1, False)),
        (["--fast", "False", one], Defaults("one", 1, 0.1, False)),
        (["--fast", one, "--steps", "3", "--prompt", "-x"], Defaults("one", 3, 0.1, True, "-x")),
        ([file("name = 'own'", "x"), one], Defaults("own", 1, 0.1, True)),
        ([file("name = 'own'", "x"), "--name=flag", "--rate=1"], Defaults("flag", rate=1.0)),
    ):
        assert read(Defaults, argv) == want
    with pytest.raises(UserError, match=str(Path(one).parent)):  # a run's folder has all keys
        read(Defaults, [one, str(Path(one).parent)])


def test_entries_of_a_dict(file):
    path = file("head_args = {'eps': 0.1, 'm': 2}")
    argv = [path, "--head_args.eps", "0.3", "--head_args.new=word"]
    assert read(Defaults, argv).head_args == {"eps": 0.3, "m": 2, "new": "word"}
    assert read(Defaults, ["--head_args={'a': 1}"]).head_args == {"a": 1}
    assert Defaults().head_args == {}  # the default was not touched


def test_positional_arguments(capsys):
    c = read(Arguments, ["a", "--quick", "b", "--rates=1,2", "x=c"])
    assert (c.run, c.others, c.quick, c.rates) == ("a", ["b", "x=c"], True, [1.0, 2.0])
    with pytest.raises(UserError, match="ratse"):
        read(Arguments, ["a", "--ratse=1"])
    for flag in ("--run=b", "--others=b"):
        with pytest.raises(UserError, match=flag[2:-2]):
            read(Arguments, ["a", "b", flag])
    with pytest.raises(SystemExit, match="2"):
        read(Arguments, [], "how to call it")
    assert "how to call it" in capsys.readouterr().err


STRATEGIES = {
    "positive": st.integers(1, 2**63 - 1),
    "seed": st.integers(0, 2**63 - 1),
    "two": st.integers(2, 2**63 - 1),
    "number": st.floats(-1e30, 1e30),
    "rate": st.floats(0, 1e30),
    "share": st.floats(0, 1),
    "mass": st.floats(0, 1, exclude_min=True),
    "dtype": st.sampled_from(["auto", "float32", "bfloat16", "float16"]),
    "which": st.sampled_from(["best", "last"]),
    "fast": st.booleans(),
    "text": st.text(st.characters(exclude_categories=["Cc", "Cs"])),
    "title": st.from_regex(r"[a-zA-Z0-9_(][a-z .=$'-]{0,149}", fullmatch=True),
    "numbers": st.lists(st.integers(-(2**80), 2**80)),
    "rates": st.lists(st.floats(0, 1e30), min_size=1),
    "limits": st.lists(st.floats(1e-9, 1e9), min_size=2, max_size=2, unique=True).map(sorted),
    "space": st.dictionaries(st.sampled_from("ab"), st.just([0.1, 0.2])),
    "some": st.dictionaries(st.sampled_from("ab"), st.one_of(st.none(), st.integers(), st.just([(1, "x")]))),
}


@settings(max_examples=25, deadline=None)
@given(st.fixed_dictionaries({}, optional=STRATEGIES))
def test_any_value_of_a_fields_type_survives_a_file_and_a_flag(values):
    want = Values(**values)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.py")
        path.write_text("".join(f"{k} = {v!r}\n" for k, v in values.items()), encoding="utf-8")
        of_file = read(Values, [str(path)])
    of_flags = read(Values, [f"--{k}={v}" for k, v in values.items()])
    assert of_flags == of_file == want
    if not str(values.get("text", "")).startswith("--"):  # which is the next flag
        assert read(Values, [part for k, v in values.items() for part in (f"--{k}", str(v))]) == want
    for f in fields(Values):
        assert len({type(getattr(config, f.name)) for config in (of_file, of_flags, Values())}) == 1


WRONG = (
    "positive=1.0 positive=True positive=many positive=0 positive fast=1 number=True number=None number=nan "
    "number=1e999 some=3 seed=-1 seed=9223372036854775808 mass=0 mass=1.1 dtype=int8 which=none rates=1,x "
    "rates=1,True rates=0,-1 rates=[] limits=2,1 space={'a':[1]} title=../x title=-x title=a\x1b[2J "
    "text=\udcff nosuch=1 fast.x=1"
)


@pytest.mark.parametrize("setting", WRONG.split(" "))
def test_a_value_that_its_field_cannot_have(setting, file):
    key, equals, value = setting.partition("=")
    with pytest.raises(UserError, match=key.partition(".")[0]):
        read(Values, [f"--{setting}"])
    if equals and value.isprintable() and "." not in key:
        with pytest.raises(UserError, match=f"a.py.*{key}"):
            read(Values, [file(f"{key} = {value!r}")])


LINES = ["import os", "steps = len('abc')", "steps = 1 + 1", "rate = steps", "a = b = 1", "steps: int = 3"]
LINES += [
    "steps = 1\nsteps = 2",
    "name = word",
    "head_args.eps = 1",
    "open(__file__ + '.ran', 'w')",
    "steps = = 1",
]


@pytest.mark.parametrize("line", [*LINES, "head_args = {[1]: 2}"])
def test_a_file_of_anything_else_is_refused_and_not_run(file, line, tmp_path):
    path = file(f'"""A docstring."""\n# and a comment\n{line}\n')
    with pytest.raises(UserError, match="a.py"):
        read_config(path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.py"]


@pytest.mark.parametrize("path", ROWS, ids=lambda p: p.stem)
def test_every_row_fits_every_overlay(path):
    """Types and values; an overlay changes the size, never the row. The teacher is the overlay's."""
    row = read_config(path)
    assert read(TrainConfig, [str(path)]).name == path.stem
    for overlay in OVERLAYS:
        config = read(TrainConfig, [str(path), str(overlay)])
        assert config.name == f"{path.stem}-{overlay.stem}" and config.out_dir == f"out/{config.name}"
        assert (config.row, config.overlay) == (path.stem, overlay.stem)
        assert (config.head, config.head_args) == (row.get("head", "softmax"), row.get("head_args", {}))
        assert "labels" not in row or not row.keys() & read_config(overlay).keys()


# ---- the door ----------------------------------------------------------------------------------------------

PROGRAMS = [
    path.relative_to(ROOT).as_posix()
    for path in sorted([*ROOT.glob("*.py"), *ROOT.glob("data/*/*.py"), *ROOT.glob("labs/**/*.py")])
    if "cli(main)" in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("word, code", [("--help", 0), ("--nonsense=1", 2)])
@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_has_a_help_and_refuses_an_unknown_flag(program, word, code, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", [program, word])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(program, run_name="__main__")
    said = "".join(capsys.readouterr())
    assert (end.value.code or 0) == code, said
    assert said.count("\n") == 1 and "nonsense" in said if code else said.count("\n") > 10, said


GONE = HTTPError("u", 404, "gone", Message(), None)


def wrong(error: BaseException):
    raise error


@pytest.mark.parametrize(
    "main, code, said",
    [
        (lambda: 0, 0, ""),
        (lambda: 143, 143, ""),
        (lambda: wrong(KeyboardInterrupt()), 130, "interrupted\n"),
        (lambda: wrong(UserError("two\n lines\x1b")), 2, "prog: error: two lines\\x1b\n"),
        (lambda: wrong(FileNotFoundError("x")), 2, "prog: error: x\n"),
        (lambda: wrong(GONE), 2, "prog: error: HTTP Error 404: gone\n"),
        (lambda: wrong(OSError(28, "full", "f")), 2, "prog: error: full: f\n"),
        (lambda: wrong(MemoryError()), 2, "prog: error: out of memory (MemoryError)\n"),
        (lambda: wrong(ModuleNotFoundError("no", name="nosuch.x")), 2, None),
    ],
)
def test_a_mistake_is_one_line_and_its_exit_code(main, code, said, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["/somewhere/prog", "--a"])
    monkeypatch.delenv("TRACEBACK", raising=False)
    with pytest.raises(SystemExit) as end:
        cli(lambda argv: main())
    err = capsys.readouterr().err
    assert end.value.code == code and (err == said or (said is None and "nosuch" in err))


def test_an_installed_program_is_named_once(monkeypatch, capsys):
    monkeypatch.setattr("common.config.INSTALLED", True)
    for program in ("/bin/nanoheads", "train.py"):
        monkeypatch.setattr(sys, "argv", [program])
        with pytest.raises(SystemExit):
            cli(lambda argv: wrong(UserError("x")))
    assert capsys.readouterr().err == "nanoheads: error: x\nnanoheads train: error: x\n"


@pytest.mark.parametrize("error", [RuntimeError(), ValueError(), RecursionError()], ids=repr)
def test_our_own_mistakes_keep_their_traceback(error, monkeypatch):
    with pytest.raises(type(error)):
        cli(lambda argv: wrong(error))
    monkeypatch.setenv("TRACEBACK", "1")
    with pytest.raises(UserError):
        cli(lambda argv: wrong(UserError("x")))


@pytest.mark.parametrize(
    "main, redirect, want",
    [
        ("print('\\u65e5')", "", (0, b"\\u65e5\n", b"")),  # a terminal without all characters
        ("sys.stdout.isatty()", ">&-", (0, b"", b"")),
        ("print('x' * 10**6)", "| head -c 1", (128 + signal.SIGPIPE, b"x", b"")),
    ],
)
def test_a_stream_that_does_not_take_all_is_no_mistake(main, redirect, want):
    code = f"import sys; from common.config import cli; cli(lambda argv: {main} or 0)"
    line = f'set -o pipefail; {sys.executable} -c "{code}" {redirect}'
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(["bash", "-c", line], cwd=ROOT, capture_output=True, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == want
