"""defaults < config files in order < flags; a config file is read, never run; all mistakes in one message."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import pytest

from config.defaults import TrainConfig
from evaluation.settings import TableConfig
from runtime.configurator import cli, configure, help_text, read_config
from runtime.errors import UserError
from runtime.values import Dtype, Field, NonNegative, Positive, PositiveShare, Seed, Text

ROOT = Path(__file__).resolve().parents[1]
# all but the screen of defaults, which is no configuration, and those of images
CONFIGS = [
    p for p in sorted([*ROOT.glob("config/*.py"), *ROOT.glob("labs/*/config/*.py")]) if p.stem != "defaults"
]
CONFIGS = [p for p in CONFIGS if "trunk_args" not in read_config(p)]
OVERLAYS = (
    *("brief", "brief_adamw", "climbs", "grammar", "mazes", "memorise", "orders"),
    *("synthetic", "tiny"),
)
OVERLAYS += ("image_tokens", "image_tokens_gpu", "mnist_tokens")

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


@dataclass
class More(Arguments):
    length: int = 2  # here
    extra: int = 3  # last

    def check(self) -> None:
        """No part of the help."""


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


def test_an_entry_of_a_dict_leaves_those_of_its_default(file):
    space = configure(TableConfig, [file("rows = ['baseline']"), "--space.gain=[1, 2]"]).space
    assert space == TableConfig().space | {"gain": [1, 2]} and len(space) > 1


@pytest.mark.parametrize("text", ["12", "1e5", "True", "None", "[1]", "'quoted'", "a=b", "a.b", "word", ""])
def test_a_flag_for_a_string_keeps_its_text(text):
    assert configure(Defaults, [f"--prompt={text}"]).prompt == text


def test_an_int_passes_for_a_float():
    rate = configure(Defaults, ["--rate=1"]).rate
    assert rate == 1.0 and type(rate) is float


@pytest.mark.parametrize(
    "setting, says",
    [
        *((f"steps={value}", "must be a valid integer") for value in ("1.0", "1e3", "True", "'3'", "many")),
        *((f"fast={value}", "must be a valid boolean") for value in ("1", "0", "true")),
        *((f"rate={value}", "must be a valid number") for value in ("True", "None", "fast")),
        ("steps=0", "must be at least 1"),
        ("head_args=3", "must be a valid dictionary"),
        ("seed=-1", "must be at least 0"),
        ("seed=9223372036854775808", "must be less than 9223372036854775808"),
        ("top_p=0", "must be greater than 0"),
        ("top_p=1.1", "must be at most 1"),
        ("dtype=int8", "must be 'auto', 'float32', 'bfloat16' or 'float16'"),
        ("which=none", "must be 'best' or 'last'"),
        ("rates=1,x", "must be a valid number"),
        ("rates=1,True", "must be a valid number"),
        ("rates=0,-1", "must be at least 0"),
    ],
)
def test_a_value_that_its_field_cannot_have(setting, says):
    key = setting.partition("=")[0]
    with pytest.raises(UserError, match=f"^{key} = .*: {says}$"):
        configure(Values, [f"--{setting}"])


def test_a_file_holds_literals_of_the_fields_types(file):
    for line in ("prompt = 12", "steps = '3'", "fast = 0", "rate = None"):
        with pytest.raises(UserError, match=f"a.py: {line}: must be a valid"):
            configure(Defaults, [file(line)])


def test_every_problem_is_in_one_message(file):
    path = file("stepps = 1\nrate = 'x'")
    with pytest.raises(UserError) as e:
        configure(Defaults, [path, "--fsat", "--steps=2.5", "--steps.x=1"])
    for part, key in zip(str(e.value).split("; "), ("stepps", "rate", "fsat", "steps", "steps"), strict=True):
        assert key in part


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
    for kind, argv, says in (
        (Arguments, ["--lenght=3"], "run is missing.*others is missing.*lenght"),
        (one, ["a", "b"], "^unexpected argument 'b'"),
    ):
        with pytest.raises(UserError, match=says):
            configure(kind, argv)


@pytest.mark.parametrize(
    "text, rates", [("0.5,1", [0.5, 1.0]), ("[2, 3]", [2.0, 3.0]), ("1", [1.0]), ("-1", [-1.0])]
)
def test_a_list_may_go_without_its_brackets(text, rates):
    assert configure(Arguments, ["a", "b", f"--rates={text}"]).rates == rates
    assert configure(Arguments, ["a", "b", "--rates", text]).rates == rates


def test_home_is_the_start_of_a_path_and_no_text(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    c = configure(Arguments, ["~/a", "~/b", "--text=~/c"])
    assert (c.run, c.others, c.text) == ("/home/me/a", ["/home/me/b"], "~/c")


@pytest.mark.parametrize(
    "line",
    [
        "import os",
        "steps = len('abc')",
        "steps = 1 + 1",
        "rate = steps",
        "a = b = 1",
        "a, b = 1, 2",
        "steps += 1",
        "steps: int = 3",
        "head_args.eps = 1",
        "print('run')",
        "def f(): pass",
        "if True: steps = 1",
        "open(__file__ + '.ran', 'w')",
        "steps = = 1",
        "steps = (1",
    ],
)
def test_a_file_of_anything_else_is_refused_and_not_run(file, line, tmp_path):
    path = file(f'"""A docstring."""\n# and a comment\n{line}\n')
    with pytest.raises(ValueError) as e:
        read_config(path)
    assert path in str(e.value) and "line 3" in str(e.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.py"]


def test_an_unhashable_key_is_refused(file):
    with pytest.raises(ValueError):
        configure(Defaults, ["--head_args={[1]: 2}"])
    with pytest.raises(ValueError, match="a.py"):
        read_config(file("head_args = {[1]: 2}"))


def test_missing_file(file):
    path = file("steps = 1", "baseline")
    with pytest.raises(FileNotFoundError, match="baselin.py"):
        configure(Defaults, [path.replace("baseline", "baselin")])
    with pytest.raises(FileNotFoundError, match="/nowhere/x.py"):
        read_config("/nowhere/x.py")


def test_help_is_the_source_with_what_is_inherited_first():
    assert help_text(Defaults).startswith('    name: str = ""\n    steps: int = 10  # how many\n')
    lines = help_text(More).splitlines()
    assert lines[0] == "    run: str"
    assert lines[-2:] == ["    length: int = 2  # here", "    extra: int = 3  # last"]


def test_windows_has_no_sigpipe():
    """A module that names the signal would not be imported there."""
    code = "import signal; del signal.SIGPIPE; from runtime.configurator import SIGPIPE; print(SIGPIPE)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == f"{int(signal.SIGPIPE)}\n", done.stderr


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


def test_there_are_rows():
    papers = "baseline smooth_gpt smooth_gpt_10 bayes_gpt sig_gpt sig_gpt_sum sig_gpt_pw bayes_sig_gpt"
    assert {p.stem for p in ROWS} >= {*papers.split()}


@pytest.mark.parametrize(
    "error, line",
    [
        (UserError("two\n lines"), "prog: error: two lines\n"),
        (FileNotFoundError("no config file x"), "prog: error: no config file x\n"),
        (OSError(28, "No space left on device", "f"), "prog: error: No space left on device: f\n"),
        (MemoryError(), "prog: error: out of memory (MemoryError)\n"),
        (RecursionError("too deep"), "prog: error: too deep\n"),
    ],
)
def test_cli_says_a_mistake_in_one_line(error, line, monkeypatch, capsys):
    def main(argv):
        assert argv == ["--a"]
        raise error

    monkeypatch.setattr(sys, "argv", ["/somewhere/prog", "--a"])
    monkeypatch.delenv("TRACEBACK", raising=False)
    with pytest.raises(SystemExit) as e:
        cli(main)()
    assert e.value.code == 2 and capsys.readouterr().err == line
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


def test_a_config_file_may_begin_with_a_byte_order_mark(tmp_path):
    (tmp_path / "c.py").write_bytes(b"\xef\xbb\xbfn_layer = 3\n")
    assert read_config(tmp_path / "c.py") == {"n_layer": 3}


@pytest.mark.parametrize("key", ["row", "overlay", "wandb_project", "out_dir", "name"])
@pytest.mark.parametrize("value", ["a\x1b[2Jb", "a\x00b", "a\x9bb", "a\ud800b"])
def test_what_a_run_could_not_be_read_with_is_not_written(key, value):
    with pytest.raises(ValueError, match=key):
        TrainConfig.read([f"--{key}={value}"])


@pytest.mark.parametrize("key", ["row", "overlay"])
def test_the_row_of_a_run_is_a_name(key):
    with pytest.raises(ValueError, match=key):
        TrainConfig.read([f"--{key}=a/b"])


COMMAND = "import os, signal, sys, time; from runtime.configurator import cli, quiet_imports; "
CTRL_C = "os.kill(os.getpid(), signal.SIGINT)"
ON_STOP = "from runtime.processes import on_stop; on_stop(lambda *_: print('stopping')); "


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
