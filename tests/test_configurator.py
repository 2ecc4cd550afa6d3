"""defaults < config files in order < flags; a config file is read, never run; all mistakes in one message."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import pytest

from common.config import cli, configure, read_config
from common.errors import UserError
from common.places import find
from common.values import Dtype, Field, NonNegative, Positive, PositiveShare, Seed, Text
from config.defaults import TrainConfig

ROOT = Path(__file__).resolve().parents[1]
# all but the screen of defaults, which is no configuration, and those of images
CONFIGS = [
    p for p in sorted([*ROOT.glob("config/*.py"), *ROOT.glob("labs/*/config/*.py")]) if p.stem != "defaults"
]
CONFIGS = [p for p in CONFIGS if "trunk_args" not in read_config(p)]
OVERLAYS = [
    *(
        "brief",
        "brief_adamw",
        "climbs",
        "grammar",
        "mazes",
        "memorise",
        "memorise_orders",
        "orders",
        "synthetic",
        "tiny",
    ),
    *("image_tokens", "image_tokens_gpu", "mnist_tokens", "synthetic", "tiny"),
]
OVERLAYS = [name for name in OVERLAYS if find(f"config/{name}.py").is_file()]  # a lab may be gone

ROWS = [p for p in CONFIGS if p.stem not in OVERLAYS]


@dataclass
class Defaults:
    name: str = ""
    steps: int = 10  # how many
    rate: float = 0.5
    fast: bool = False
    prompt: str = "\n"
    head_args: dict = field(default_factory=dict)


@dataclass
class Arguments:
    run: str
    others: list[str]
    which: Literal["best", "last"] = "best"  # of the two
    rates: list[float] = field(default_factory=lambda: [0.5])
    text: Text = ""
    length: int = 1
    quick: bool = False


@dataclass
class Values(Defaults):
    steps: Positive = 10
    seed: Seed = 1
    top_p: PositiveShare = 1.0
    dtype: Dtype = "auto"
    which: Literal["best", "last"] = "best"
    rates: Annotated[list[NonNegative], Field(min_length=1)] = field(default_factory=lambda: [0.5])


@pytest.fixture
def file(tmp_path):
    def write(text: str, name: str = "a") -> str:
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        return str(path)

    return write


def test_defaults_give_way_to_files_in_order_and_these_to_flags(file):
    one, two = file("steps = 1\nrate = 0.1\nfast = True\n", "one"), file("rate = 0.2\nsteps = 2\n", "two")
    for argv, want in (
        ([], Defaults(name="run")),
        ([one], Defaults("one", 1, 0.1, True)),
        ([one, two], Defaults("one-two", 2, 0.2, True)),
        ([two, one], Defaults("two-one", 1, 0.1, True)),
        (["--steps=3", one, two], Defaults("one-two", 3, 0.2, True)),  # wherever the flags stand
        ([one, "--fast=False", "--steps=4", "--steps=5"], Defaults("one", 5, 0.1, False)),
        (["--fast", "False", one], Defaults("one", 1, 0.1, False)),
        (["--fast", one, "--steps", "3"], Defaults("one", 3, 0.1, True)),
        ([file("name = 'own'", "x"), one], Defaults("own", 1, 0.1, True)),
        ([file("name = 'own'", "x"), "--name=flag"], Defaults("flag")),
    ):
        assert configure(Defaults, argv) == want


def test_entries_of_a_dict(file):
    path = file("head_args = {'eps': 0.1, 'm': 2}")
    c = configure(Defaults, [path, "--head_args.eps=0.3", "--head_args.new=word"])
    assert c.head_args == {"eps": 0.3, "m": 2, "new": "word"}
    assert configure(Defaults, ["--head_args={'a': 1}"]).head_args == {"a": 1}
    assert Defaults().head_args == {}  # the default was not touched


@pytest.mark.parametrize("text", ["12", "1e5", "True", "None", "[1]", "'quoted'", "a=b", "a.b", "word", ""])
def test_a_flag_for_a_string_keeps_its_text(text):
    assert configure(Defaults, [f"--prompt={text}"]).prompt == text


def test_an_int_passes_for_a_float():
    rate = configure(Defaults, ["--rate=1"]).rate
    assert rate == 1.0 and type(rate) is float


@pytest.mark.parametrize(
    "setting",
    ["steps=1.0", "steps=True", "steps=many", "steps=0", "fast=1", "rate=True", "rate=None", "head_args=3"]
    + ["seed=-1", "seed=9223372036854775808", "top_p=0", "top_p=1.1", "dtype=int8", "which=none"]
    + ["rates=1,x", "rates=1,True", "rates=0,-1"],
)
def test_a_value_that_its_field_cannot_have(setting):
    with pytest.raises(UserError, match=f"^{setting.partition('=')[0]} = "):
        configure(Values, [f"--{setting}"])


def test_every_problem_is_in_one_message(file):
    """Also of a file, whose literals have the types of the fields."""
    path = file("stepps = 1\nrate = 'x'\nprompt = 12")
    with pytest.raises(UserError) as e:
        configure(Defaults, [path, "--fsat", "--steps=2.5", "--steps.x=1"])
    keys = ("stepps", "rate", "prompt", "fsat", "steps", "steps")
    assert all(key in part for part, key in zip(str(e.value).split("; "), keys, strict=True))


def test_a_value_may_be_the_next_argument(file):
    c = configure(
        Defaults, ["--steps", "3", "--fast", file("rate = 0.1"), "--prompt", "-x", "--head_args.eps", "0.3"]
    )
    assert (c.steps, c.fast, c.rate, c.prompt, c.head_args) == (3, True, 0.1, "-x", {"eps": 0.3})
    for argv in (["--steps"], ["--steps", "--fast"], ["--prompt"]):
        with pytest.raises(UserError, match=argv[0].removeprefix("--")):
            configure(Defaults, argv)


def test_positional_arguments():
    c = configure(Arguments, ["a", "--quick", "b", "--length=3", "x=c"])
    assert (c.run, c.others, c.quick, c.length) == ("a", ["b", "x=c"], True, 3)
    one = dataclass(type("One", (), {"__annotations__": {"run": str}}))
    for kind, argv, keys in ((Arguments, ["--lenght=3"], "run.*others.*lenght"), (one, ["a", "b"], "'b'")):
        with pytest.raises(UserError, match=keys):
            configure(kind, argv)


@pytest.mark.parametrize(
    "text, rates", [("0.5,1", [0.5, 1.0]), ("[2, 3]", [2.0, 3.0]), ("1", [1.0]), ("-1", [-1.0])]
)
def test_a_list_may_go_without_its_brackets(text, rates):
    assert configure(Arguments, ["a", "b", f"--rates={text}"]).rates == rates
    assert configure(Arguments, ["a", "b", "--rates", text]).rates == rates


@pytest.mark.parametrize(
    "line",
    ["import os", "steps = len('abc')", "steps = 1 + 1", "rate = steps", "a = b = 1", "steps: int = 3"]
    + ["head_args.eps = 1", "open(__file__ + '.ran', 'w')", "steps = = 1", "head_args = {[1]: 2}"],
)
def test_a_file_of_anything_else_is_refused_and_not_run(file, line, tmp_path):
    path = file(f'"""A docstring."""\n# and a comment\n{line}\n')
    with pytest.raises(ValueError, match="a.py"):
        read_config(path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.py"]


@pytest.mark.parametrize("path", ROWS, ids=lambda p: p.stem)
def test_every_row_fits_every_overlay(path):
    """Types and values; an overlay changes the size, never the row. The teacher is the overlay's."""
    row = read_config(path)
    assert TrainConfig.read([str(path)]).name == path.stem
    for overlay in OVERLAYS:
        config = TrainConfig.read([str(path), f"config/{overlay}.py"])
        assert config.name == f"{path.stem}-{overlay}" and config.out_dir == f"out/{path.stem}-{overlay}"
        assert (config.head, config.head_args) == (row.get("head", "softmax"), row.get("head_args", {}))
        scale = read_config(f"config/{overlay}.py")
        assert config.n_embd == scale["n_embd"]
        assert "labels" not in row or not row.keys() & scale.keys()


@pytest.mark.parametrize(
    "error", [UserError("two\n lines"), FileNotFoundError("x"), OSError(28, "full", "f"), MemoryError()]
)
def test_cli_says_a_mistake_in_one_line(error, monkeypatch, capsys):
    def main(argv):
        raise error

    monkeypatch.setattr(sys, "argv", ["/somewhere/prog", "--a"])
    monkeypatch.delenv("TRACEBACK", raising=False)
    with pytest.raises(SystemExit) as e:
        cli(main)()
    said = capsys.readouterr().err
    assert e.value.code == 2 and said.startswith("prog: error: ") and said.count("\n") == 1
    monkeypatch.setenv("TRACEBACK", "1")
    with pytest.raises(type(error)):
        cli(main)()


def test_cli_exit_codes(monkeypatch, capsys):
    def interrupted(argv):
        raise KeyboardInterrupt

    for main, code in (
        (lambda argv: None, 0),
        (lambda argv: 1, 1),
        (lambda argv: 143, 143),
        (interrupted, 130),
    ):
        with pytest.raises(SystemExit) as e:
            cli(main)()
        assert e.value.code == code
    assert capsys.readouterr().err == "interrupted\n"
    with pytest.raises(RuntimeError):  # our own mistakes keep their traceback
        cli(lambda argv: (_ for _ in ()).throw(RuntimeError()))()


COMMAND = "import os, signal, sys, time; from common.config import cli, quiet_imports; "
CTRL_C = "os.kill(os.getpid(), signal.SIGINT)"
ON_STOP = "from training.distributed import on_stop; on_stop(lambda *_: print('stopping')); "


@pytest.mark.parametrize(
    "code, environment, returns, shown",
    [
        ("cli(lambda argv: print('\\u65e5'))()", {"PYTHONIOENCODING": "ascii"}, 0, b"\\u65e5\n"),
        (f"quiet_imports(); {CTRL_C}; time.sleep(9)", {}, -signal.SIGINT, b""),  # a shell shows it as 130
        (
            f"signal.signal(signal.SIGINT, signal.SIG_IGN); quiet_imports(); {ON_STOP}"
            f"cli(lambda argv: {CTRL_C} or print('went on'))()",
            *({}, 0, b"went on\n"),
        ),
    ],
    ids=["a terminal without all characters", "Ctrl-C in imports", "ignored, as in a script's background"],
)
def test_a_process_has_no_traceback(code, environment, returns, shown):
    command = [sys.executable, "-c", COMMAND + code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, env=os.environ | environment)
    assert (done.returncode, done.stdout, done.stderr) == (returns, shown, b"")


@pytest.mark.parametrize(
    "prints, redirect, want",
    [
        ("print(1, file=sys.stderr)", ">&-", (0, b"", b"1\n")),
        ("print(1, file=sys.stderr)", "2>&-", (0, b"", b"")),
        ("print('x' * 10**6)", "| head -c 1", (128 + signal.SIGPIPE, b"x", b"")),
    ],
)
def test_a_closed_stream_is_no_mistake(prints, redirect, want):
    line = f'set -o pipefail; {sys.executable} -c "{COMMAND}cli(lambda argv: {prints})()" {redirect}'
    done = subprocess.run(["bash", "-c", line], cwd=ROOT, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == want
