"""defaults < config files in order < flags; a config file is read, never run; all mistakes in one message."""

import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from config.defaults import TrainConfig
from runtime.configurator import Text, cli, configure, help_text, read_config
from runtime.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
# all but the screen of defaults, which is no configuration, and those of images
CONFIGS = [p for p in sorted((ROOT / "config").glob("*.py")) if p.stem != "defaults"]
CONFIGS = [p for p in CONFIGS if "trunk_args" not in read_config(p)]
OVERLAYS = ("brief", "climbs", "grammar", "mazes", "memorise", "orders", "small", "synthetic", "tiny")
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


def test_precedence(file):
    one, two = file("steps = 1\nrate = 0.1\nfast = True\n", "one"), file("rate = 0.2\nsteps = 2\n", "two")
    assert configure(Defaults, []) == Defaults(name="run")
    assert configure(Defaults, [one]) == Defaults("one", 1, 0.1, True)
    assert configure(Defaults, [one, two]) == Defaults("one-two", 2, 0.2, True)
    assert configure(Defaults, [two, one]) == Defaults("two-one", 1, 0.1, True)
    assert configure(Defaults, ["--steps=3", one, two]) == Defaults(
        "one-two", 3, 0.2, True
    )  # flags last, wherever they stand


def test_flags(file):
    assert configure(Defaults, ["--fast"]).fast is True
    assert configure(Defaults, [file("fast = True"), "--fast=False"]).fast is False
    assert configure(Defaults, ["--steps=1", "--steps=2"]).steps == 2
    c = configure(
        Defaults, [file("head_args = {'eps': 0.1, 'm': 2}"), "--head_args.eps=0.3", "--head_args.new=word"]
    )
    assert c.head_args == {"eps": 0.3, "m": 2, "new": "word"}
    assert configure(Defaults, ["--head_args={'a': 1}"]).head_args == {"a": 1}
    assert Defaults().head_args == {}  # the default was not touched


def test_the_name_is_given_or_made_of_the_files(file):
    assert configure(Defaults, [file("", "x"), file("", "y")]).name == "x-y"
    assert configure(Defaults, [file("name = 'own'", "x"), file("", "y")]).name == "own"
    assert configure(Defaults, [file("name = 'own'", "x"), "--name=flag"]).name == "flag"


@pytest.mark.parametrize("text", ["12", "1e5", "True", "None", "[1]", "'quoted'", "a=b", "a.b", "word", ""])
def test_a_flag_for_a_string_keeps_its_text(text):
    assert configure(Defaults, [f"--prompt={text}"]).prompt == text


def test_types(file):
    c = configure(Defaults, ["--rate=1"])
    assert c.rate == 1.0 and type(c.rate) is float  # an int passes for a float
    for flag in (
        "--steps=1.0",
        "--steps=1e3",
        "--steps=True",
        "--steps=many",
        "--steps",
        "--fast=1",
        "--fast=true",
        "--rate=True",
        "--rate=fast",
        "--head_args=3",
        "--prompt",
    ):
        with pytest.raises(ValueError, match=f"^{flag}: "):
            configure(Defaults, [flag])
    for line in ("prompt = 12", "steps = '3'", "fast = 0", "rate = None"):
        with pytest.raises(ValueError, match="a.py: "):
            configure(Defaults, [file(line)])


def test_every_problem_is_in_one_message(file):
    with pytest.raises(ValueError) as e:
        configure(Defaults, [file("stepps = 1\nrate = 'x'"), "--fsat", "--steps=2.5", "--zzz=1"])
    text = str(e.value)
    assert (
        "unknown key 'stepps'; did you mean 'steps'" in text
        and "unknown key 'fsat'; did you mean 'fast'" in text
    )
    assert "rate = 'x' is a str; give a float" in text and "steps = 2.5 is a float; give a int" in text
    assert "unknown key 'zzz'; --help lists the keys" in text


def test_a_file_of_another_program_is_named_once(file, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/any/where/train.py"])
    path = file("# Rows.\n# python data/x/prepare.py\n#     python other.py a.py --fast\nzz = 1\nyy = 2")
    said = f"{path} is for other.py: 'zz' is no key of train.py"
    with pytest.raises(UserError) as e:
        configure(Defaults, [path])
    assert str(e.value) == said
    monkeypatch.setattr("sys.argv", ["other.py"])
    with pytest.raises(UserError, match="unknown key 'zz'; --help lists"):
        configure(Defaults, [path])


def test_names_of_nanogpt_are_known():
    with pytest.raises(ValueError, match="unknown key 'start'; did you mean 'prompt'"):
        configure(Defaults, ["--start=x"])
    with pytest.raises(ValueError, match="'decay_lr'; --help lists"):  # of a command without min_lr
        configure(Defaults, ["--decay_lr=x"])


def test_a_value_may_be_the_next_argument(file):
    c = configure(
        Defaults, ["--steps", "3", "--fast", file("rate = 0.1"), "--prompt", "-x", "--head_args.eps", "0.3"]
    )
    assert (c.steps, c.fast, c.rate, c.prompt, c.head_args) == (3, True, 0.1, "-x", {"eps": 0.3})
    for argv in (["--steps"], ["--steps", "--fast"], ["--prompt"]):
        with pytest.raises(UserError, match=f"^{argv[0]}: give its value, too: {argv[0]}=VALUE$"):
            configure(Defaults, argv)


def test_positional_arguments():
    c = configure(Arguments, ["a", "--quick", "b", "--length=3", "x=c"])
    assert (c.run, c.others, c.quick, c.length) == ("a", ["b", "x=c"], True, 3)
    with pytest.raises(
        UserError, match="^run is missing: .*; others is missing: .*; --lenght=3: unknown key"
    ):
        configure(Arguments, ["--lenght=3"])
    with pytest.raises(UserError, match="unknown key 'run'"):
        configure(Arguments, ["a", "b", "--run=c"])
    one = dataclass(type("One", (), {"__annotations__": {"run": str}}))
    with pytest.raises(UserError, match="^unexpected argument 'b'"):
        configure(one, ["a", "b"])


@pytest.mark.parametrize(
    "text, rates", [("0.5,1", [0.5, 1.0]), ("[2, 3]", [2.0, 3.0]), ("1", [1.0]), ("-1", [-1.0])]
)
def test_a_list_may_go_without_its_brackets(text, rates):
    assert configure(Arguments, ["a", "b", f"--rates={text}"]).rates == rates
    assert configure(Arguments, ["a", "b", "--rates", text]).rates == rates


def test_what_a_list_or_a_choice_holds_is_checked():
    for flag, says in (
        ("--rates=1,x", r"rates = '1,x'|rates = \['1,x'\] is a list; give a list\[float\]"),
        ("--rates=1,True", r"rates = \[1, True\] is a list; give a list\[float\]"),
        ("--which=none", "which = 'none': give 'best' or 'last'"),
    ):
        with pytest.raises(UserError, match=says):
            configure(Arguments, ["a", "b", flag])


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
    assert str(e.value).startswith(f"{path}:3: ")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.py"]


def test_an_unhashable_key_is_refused(file):
    with pytest.raises(ValueError):
        configure(Defaults, ["--head_args={[1]: 2}"])
    with pytest.raises(ValueError, match="a.py:1: "):
        read_config(file("head_args = {[1]: 2}"))


def test_an_entry_of_a_number_is_refused():
    with pytest.raises(ValueError, match="steps"):
        configure(Defaults, ["--steps=5", "--steps.x=1"])


def test_missing_file(file):
    path = file("steps = 1", "baseline")
    with pytest.raises(FileNotFoundError, match="baselin.py; did you mean .*baseline.py"):
        configure(Defaults, [path.replace("baseline", "baselin")])
    with pytest.raises(FileNotFoundError, match="no config file /nowhere/x.py$"):
        read_config("/nowhere/x.py")


def test_help_is_the_source():
    text = help_text(Defaults)
    assert "steps: int = 10  # how many" in text
    assert text.endswith("head_args: dict = field(default_factory=dict)")


def test_help_has_what_is_inherited_first():
    lines = help_text(More).splitlines()
    assert lines[0] == "    run: str" and lines[-2:] == [
        "    length: int = 2  # here",
        "    extra: int = 3  # last",
    ]


def test_windows_has_no_sigpipe():
    """A module that names the signal would not be imported there."""
    code = "import signal; del signal.SIGPIPE; from runtime.configurator import SIGPIPE; print(SIGPIPE)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == f"{int(signal.SIGPIPE)}\n", done.stderr


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize("path", ROWS, ids=lambda p: p.stem)
def test_every_row_fits_every_overlay(path, overlay):
    assert TrainConfig.read([str(path)]).name == path.stem
    config = TrainConfig.read([str(path), str(ROOT / "config" / f"{overlay}.py")])  # checks types and values
    assert config.name == f"{path.stem}-{overlay}" and config.out_dir == f"out/{path.stem}-{overlay}"
    assert config.head == read_config(path)["head"]  # an overlay changes the size, never the row
    assert config.head_args == read_config(path).get("head_args", {})
    assert config.n_embd == read_config(ROOT / "config" / f"{overlay}.py")["n_embd"]


def test_there_are_rows():
    assert {p.stem for p in ROWS} >= {
        "baseline",
        "smooth_gpt",
        "smooth_gpt_10",
        "bayes_gpt",
        "sig_gpt",
        "sig_gpt_sum",
        "sig_gpt_pw",
        "bayes_sig_gpt",
    }
    assert all(isinstance(read_config(p), dict) for p in CONFIGS)


@pytest.mark.parametrize(
    "error, line",
    [
        (UserError("two\n lines"), "prog: error: two lines\n"),
        (FileNotFoundError("no config file x"), "prog: error: no config file x\n"),
        (
            OSError(28, "No space left on device", "f"),
            "prog: error: No space left on device: f: "
            "free some space and run it again (a training with --resume)\n",
        ),
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
