"""What the tests of bad input share: a folder of all that programs read, a call of a program in a copy of it,
and ways in which a file can be wrong."""

import functools
import gzip
import io
import json
import math
import re
import shlex
import shutil
import signal
import sys
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
import tqdm
from conftest import TINY, train_in_process
from safetensors.torch import load, save

import augment
import data.demo.prepare
import data.grammar.prepare
import data.text.prepare
import data.wikitext103.prepare
import eval_diversity
import export
import measures.jobs
import report
import sample
import table
import train
import training.text
from config.defaults import TrainConfig
from data.prepared import prepared
from evaluation.settings import TableConfig
from measures import search
from measures.jobs import Ended
from measures.measure import training_of
from measures.store import Store, unfolded
from runtime.configurator import cli, configure

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS: dict[str, Callable] = {
    **{"train": train.main, "augment": augment.main, "sample": sample.main, "eval": eval_diversity.main},
    **{"table": table.main, "report": report.main, "export": export.main, "demo": data.demo.prepare.command},
    **{"grammar": data.grammar.prepare.command, "text": data.text.prepare.command},
    "wiki": data.wikitext103.prepare.command,
}

# arguments that make a short and valid command of each program
TINY = TINY | dict(block_size=64, batch_size=2)
SIZE = " ".join(f"--{k}={v}" for k, v in TINY.items()) + " --dataset=demo --source="
TRAIN = f"--name=x --out_dir=new {SIZE} --max_steps=1"
RESUME = f"--name=run --out_dir=run {SIZE} --max_steps=3 --eval_interval=3 --resume"
LABELS = f"{TRAIN} --head=sigmoid --labels=hard --teacher=run --candidates=3"
SAMPLE = "run --device=cpu --length=2 --prompt=the"
PROMPTS = "run --device=cpu --length=2 --prompts=prompts.txt"
EVALUATE = "--texts=4 --prompt_tokens=6 --new_tokens=50"
EVAL = f"run --device=cpu {EVALUATE}"
TRUTH = f"words --device=cpu {EVALUATE}"
BPE = "data/demo/bpe300"
GRAMMAR = "seed=1 train=2000 validation=600 test=600 themes=2 nouns=4 verbs=4 adjectives=3 adverbs=3"
NOVELS = "--tokenizer=bpe270 --source=novels --out=new"

# the programs that read the store results/e.jsonl, of which TABLE is the table
OUT = "--out=results/e"
TABLE = ["--name=e", "--rows=['baseline']", "--overlay=tiny", "--seeds=[1]", f"--flags={SIZE}"]
TABLE += [f"--evaluate={EVALUATE}", "--trials=1", "--design=1", "--space={'learning_rate': [0.001, 0.01]}"]
SEARCH, TUNED = [*TABLE, "--search"], [*TABLE, "--tuned", "--seeds=[2]"]
MEASURES = {
    "text": f"--measure=text {EVAL} {OUT}",
    "orders": f"--measure=orders run {OUT}",
    "curve": f"--measure=curve run {OUT}",
}
REPORT = "results/e run --device=cpu --prompts=1 --prompt_tokens=6 --new_tokens=3 --out=new.html"
READERS = [
    *(("table", arguments) for arguments in (TABLE, SEARCH, TUNED, *MEASURES.values())),
    *(("eval", f"{EVAL} {OUT}"), ("report", REPORT)),
]


def without_bars(patch: pytest.MonkeyPatch) -> None:
    init = functools.partialmethod(tqdm.tqdm.__init__, disable=True)
    patch.setattr(tqdm.tqdm, "__init__", init)


def fill(folder: Path, token_folder: Path) -> None:
    """All that the programs read: two runs with their token files, a label store, a store of every measure.

    Everything in it is relative to it.
    """
    shutil.copytree(token_folder, folder / BPE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        without_bars(patch)
        patch.setattr("data.prepared.ROOT", folder)
        data.grammar.prepare.corpus.prepare(folder / "data/grammar/words", "words", GRAMMAR)
        runs = {
            "run": dict(dataset="demo", max_steps=3, eval_interval=1),
            "words": dict(dataset="grammar", tokenizer="words", max_steps=2, eval_interval=2),
        }
        for (name, own), tokens in zip(runs.items(), (BPE, "data/grammar/words")):
            config = TrainConfig(**TINY | own | dict(name=name, out_dir=name))
            assert train_in_process(config, folder / tokens) == 0
            for path in (folder / name).glob("*/config.json"):  # as if the project were here
                path.write_text(path.read_text().replace(f"{folder}/", ""))
        for module in (training.text, augment):
            patch.setattr(module, "prepared", lambda *_: folder / BPE)
        assert augment.main(LABELS.split()) == 0
        (folder / "config").symlink_to(ROOT / "config")
        patch.setattr(measures.jobs, "DATA", folder / "data")
        for arguments in MEASURES.values():
            assert table.main(arguments.split()) == 0
        put_table(Store(folder / "results/e.jsonl"))
    (folder / "prompts.txt").write_text("the\n")
    (folder / "text").mkdir()
    for split in ("train", "valid", "test"):
        (folder / f"text/wiki.{split}.tokens").write_text(" \n = a title = \n \n some words of text \n" * 30)
    (folder / "novels").mkdir()
    for name in "abcde":
        (folder / f"novels/{name}.txt").write_text(f"some words of {name}\n" * 40)
    (folder / "novels/rows.jsonl").write_text('{"text": "a row of words"}\n' * 3)
    (folder / "novels/packed.txt.gz").write_bytes(gzip.compress(b"packed words\n" * 40))


def put_table(store: Store) -> None:
    """The rows of TABLE and of its search, as if their runs had been trained."""
    c = configure(TableConfig, TABLE)
    (asked,) = table.runs_of(c, store)
    (measured,) = (row for row in store.rows("text") if not row.get("reference"))
    own = {"name": asked.out.name, **asked.fields, "step": asked.wanted["max_steps"]}
    trials = search.Search(c, store)
    (trial,) = trials.shared("baseline")
    trained = trials.row_of(trial, Ended({**trial.wanted, "vocab_size": 300}, 5.0))
    store.put([measured | own | {"training": training_of(asked.wanted)}, trained])


# ---- a call ------------------------------------------------------------------------------------------------

UNSHOWN = (ResourceWarning, DeprecationWarning, PendingDeprecationWarning)  # by default


class Result:
    def __init__(self, code: int, err: str, changed: list[str]):
        self.code, self.err, self.changed = code, err, changed


class Trains(BaseException):
    """A program went on to train what it was asked for."""


def state(folder: Path) -> dict[str, tuple[int, ...]]:
    """What tells whether a file is another one: its time and its size; of folders that they are there."""
    found = {str(p.relative_to(folder)): p for p in folder.rglob("*")}
    stats = {name: p.stat() for name, p in found.items()}
    return {n: () if found[n].is_dir() else (s.st_mtime_ns, s.st_size) for n, s in stats.items()}


def mirror(whole: Path, folder: Path) -> None:
    """Makes `folder` a copy of `whole` again: of all files only where there are too many or too few."""
    want, have = state(whole), state(folder)
    if want.keys() != have.keys():
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(whole, folder, symlinks=True)
    for name in [name for name in want if have.get(name, want[name]) != want[name]]:
        shutil.copy2(whole / name, folder / name)


def same(path: Path, content: bytes) -> bool:
    return path.is_file() and path.read_bytes() == content


def no_training(runs: Iterable, *_, **__) -> None:
    if list(runs):
        raise Trains


@pytest.fixture(scope="module")
def whole(token_folder, tmp_path_factory) -> Path:
    """The folder that the programs are called in. Read only."""
    folder = tmp_path_factory.mktemp("whole")
    fill(folder, token_folder)
    return folder


@pytest.fixture(scope="module")
def here(whole, tmp_path_factory) -> Path:
    """Where the programs are called: a copy of `whole` with what the last call left."""
    return tmp_path_factory.mktemp("called") / "here"


@pytest.fixture
def call(whole, here, monkeypatch, capfd):
    """call(program, arguments, {file: its content, or a function of the old one}) -> Result.

    Of one run, in a copy of `whole`.
    """
    folder = here

    def one(program: str, arguments, damage=None) -> Result:
        mirror(whole, folder)
        for name, content in (damage or {}).items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            content = content(path.read_bytes()) if callable(content) else content
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        monkeypatch.chdir(folder)
        without_bars(monkeypatch)
        monkeypatch.delenv("TRACEBACK", raising=False)
        monkeypatch.setattr("data.prepared.ROOT", folder)
        monkeypatch.setattr(measures.jobs, "DATA", folder / "data")
        for module in (training.text, augment, measures.jobs):
            monkeypatch.setattr(module, "prepared", lambda *a: prepared(*a, root=folder / "data"))
        for module in (table, search):
            monkeypatch.setattr(module, "train_all", no_training)
        words = shlex.split(arguments) if isinstance(arguments, str) else arguments
        monkeypatch.setattr(sys, "argv", [program, *words])
        before = {name: at and (folder / name).read_bytes() for name, at in state(folder).items()}
        handlers = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
        capfd.readouterr()
        try:
            # a warning would be a further line on stderr
            with warnings.catch_warnings(record=True, action="default") as warned:
                cli(PROGRAMS[program])()
        except SystemExit as e:
            code = e.code
        finally:
            for s, handler in handlers.items():
                signal.signal(s, handler)
        changed = [n for n, old in before.items() if old and not same(folder / n, old)]
        err = capfd.readouterr().err
        err += "".join(f"{w.message}\n" for w in warned if w.category not in UNSHOWN)
        return Result(code, err, changed)

    return one


def refused(result: Result, program: str, says: str = "") -> None:
    assert result.code == 2, (result.code, result.err)
    one_line = result.err.startswith(f"{program}: error: ") and result.err.count("\n") == 1
    assert one_line and "Traceback" not in result.err, result.err
    assert says in result.err and len(result.err) < 1500, result.err
    assert result.err.removesuffix("\n").isprintable(), result.err  # nothing that a terminal obeys
    assert not result.changed, result.changed


# ---- how a file can be wrong -------------------------------------------------------------------------------

DEEP = "[" * 100_000
NOT_JSON = ["", "{", "[]", "null", "7", '"x"', DEEP, b"\xff\xfe", '{"a": ' + "9" * 5000 + "}"]


def flags(program: str, arguments, words: str = "", said: dict[str, str] | None = None) -> list[tuple]:
    """A case of each flag: of `words`, of which the line names the key, and {flag: what the line says}."""
    asked = {word: re.split("[=.]", word)[0] for word in words.split()} | (said or {})
    base = arguments if isinstance(arguments, list) else shlex.split(arguments)
    return [(program, [*base, *shlex.split(f"--{flag}")], {}, says) for flag, says in asked.items()]


def changed(**keys):
    """A JSON file with other values; None takes a key away."""
    return lambda old: json.dumps(
        {k: v for k, v in {**json.loads(old), **keys}.items() if v is not None or k not in keys}
    )


def rows(of: str = "", **keys):
    """A store whose rows of a measure (of each, if it is empty) have other values, or functions of the old
    ones; None takes a key away."""

    def edit(old: bytes) -> str:
        lines = unfolded([json.loads(line) for line in old.decode().split("\n") if line])
        for line in lines:
            if of in ("", line["measure"]) and not line.get("reference"):
                line |= {k: v(line[k]) if callable(v) else v for k, v in keys.items()}
                for key in [k for k, v in keys.items() if v is None]:
                    del line[key]
        return "".join(json.dumps(line) + "\n" for line in lines)

    return edit


def resettled(of: str):
    """A store whose rows of a measure were made with another first setting."""
    return rows(of, settings=lambda had: had | {next(iter(had)): "other"})


# files that are no store, whoever reads them
NOT_A_STORE = [
    *("{", "[]", "null", "7", '"x"', DEEP, b"\xff\xfe", '{"a": ' + "9" * 5000 + "}", '{"rows": []}'),
    lambda old: old[:-9],
    *(rows(name=name) for name in ("../x", "x\x1b[2J", "\ud800", "human", ["x"], 7, None)),
    *(rows(definition=value) for value in (True, 1.5, "1", None)),
    *(rows(settings=value) for value in (7, [], None)),
    *(rows(training=value) for value in (7, [], "x")),
    *(rows(measure=value) for value in (7, [])),
    *(rows(x=value) for value in (math.nan, math.inf, "a\x1b]0;x\x07", {"float": "many"})),
]


def arrays(**changes):
    """A truth file with other arrays."""

    def edit(old: bytes) -> bytes:
        content = dict(np.load(io.BytesIO(old)))
        content.update({k: change(content[k]) for k, change in changes.items()})
        out = io.BytesIO()
        np.savez(out, **content)
        return out.getvalue()

    return edit


def tensors(change):
    return lambda old: save({k: change(v) for k, v in load(old).items()})


def saved(content) -> bytes:
    """An optimizer.pt that holds something else."""
    out = io.BytesIO()
    torch.save(content, out)
    return out.getvalue()


def damaged(old: bytes, rng: np.random.Generator) -> bytes:
    """`old` cut short, with a bit or a block changed, or with something put in."""
    at, kind = int(rng.integers(len(old))), int(rng.integers(5))
    if kind == 0:
        return old[:at]
    if kind == 1:
        return old[:at] + rng.bytes(16) + old[at:]
    if kind == 2:
        return old[:at] + rng.bytes(16) + old[at + 16 :]
    return old[:at] + bytes([old[at] ^ 1 << int(rng.integers(8))]) + old[at + 1 :]


def check_random_damage(call, whole: Path, program: str, arguments, pattern: str, times: int) -> None:
    """Each file of `pattern` by itself, damaged: refused or harmless.

    Damage that leaves valid content (another name, another weight) cannot be seen.
    """
    for path in sorted(whole.glob(pattern)):
        name = str(path.relative_to(whole))
        for seed in range(times):
            rng = np.random.default_rng((seed, len(name)))
            try:
                result = call(program, arguments, {name: lambda old: damaged(old, rng)})
            except Trains:
                continue
            if result.code:
                refused(result, program)
            assert "Traceback" not in result.err and "panicked" not in result.err, (name, seed, result.err)


def check_all(call, commands: Iterable[tuple]) -> None:
    """Commands that work when nothing is damaged: else a case could be refused for another reason."""
    for program, arguments in commands:
        result = call(program, arguments)
        assert result.code == 0, (program, arguments, result.err)


def named(cases: list[tuple]) -> list[str]:
    """A printable name of each case."""
    shown = (" ".join(c[1][-1:]) if isinstance(c[1], list) else c[1] for c in cases)
    short = ("".join(c if c.isalnum() or c in "=._/-" else "_" for c in text)[-60:] for text in shown)
    return [f"{i}-{case[0]}-{text}" for i, (case, text) in enumerate(zip(cases, short))]
