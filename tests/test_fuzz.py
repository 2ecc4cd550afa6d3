"""Bad input of every kind, at every entry point: exit code 2, one line that says why, no file changed.

CASES is a table that grows with every case found: (program, arguments, {file: its new content}, what the line
says). Behind it, seeded random damage of every file of a prepared folder, of a run and of tables.
"""

import gzip
import hashlib
import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import warnings
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
import evaluation.rows
import evaluation.texts
import export
import labs.climbs.prepare
import labs.embeddings.draw
import labs.image_tokens.prepare
import labs.images.sample
import labs.mazes.prepare
import labs.synthetic.prepare
import measures.jobs
import measures.search
import report
import sample
import table
import train
import training.text
from data.prepared import prepared
from runtime.configurator import cli
from tests.labs.test_classes import made, write_mnist

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = {
    "train": train.main,
    "augment": augment.main,
    "sample": sample.main,
    "eval": eval_diversity.main,
    "frontier": lambda argv: table.main(["--measure=frontier", *argv]),
    "orders": lambda argv: table.main(["--measure=orders", *argv]),
    "embeddings": labs.embeddings.draw.main,
    "images": lambda argv: table.main(["--measure=images", *argv]),
    "sample_images": labs.images.sample.main,
    "report": report.main,
    "table": table.main,
    "tune": lambda argv: table.main(["--search", *argv]),
    "export": export.main,
    "climbs": labs.climbs.prepare.command,
    "demo": data.demo.prepare.command,
    "grammar": data.grammar.prepare.command,
    "mazes": labs.mazes.prepare.command,
    "synthetic": labs.synthetic.prepare.command,
    "image_tokens": labs.image_tokens.prepare.command,
    "text": data.text.prepare.command,
    "wiki": data.wikitext103.prepare.command,
}
GRAMMAR = "seed=1 train=2000 validation=600 test=600 themes=2 nouns=4 verbs=4 adjectives=3 adverbs=3"

# arguments that make a short and valid command of each program
TINY = TINY | dict(block_size=64, batch_size=2)
SIZE = " ".join(f"--{k}={v}" for k, v in TINY.items()) + " --dataset=demo"
TRAIN = f"--name=x --out_dir=new {SIZE} --max_steps=1"
RESUME = f"--name=run --out_dir=run {SIZE} --max_steps=3 --eval_interval=3 --resume"
LABELS = (
    f"--name=x --out_dir=new {SIZE} --max_steps=1 --head=sigmoid --labels=hard --teacher=run --candidates=3"
)
SAMPLE = "run --device=cpu --length=2 --prompt=the"
EVAL = "run --device=cpu --texts=4 --prompt_tokens=6 --new_tokens=50"
TRUTH = "words --device=cpu --texts=4 --prompt_tokens=6 --new_tokens=50"
FRONTIER = "run --device=cpu --texts=4 --prompt_tokens=6 --new_tokens=50 --temperatures=1 --out=results/f"
EVALUATE = "--texts=4 --prompt_tokens=6 --new_tokens=50"
TABLE = ["--name=t", "--rows=['baseline']", "--overlay=tiny", "--seeds=[1]", f"--evaluate={EVALUATE}"]
BPE = "data/demo/bpe300"
IMAGES = "--dataset=mnist --source=images --trunk_args.layers=FC[4] --batch_size=20 --max_steps=3"
IMAGES += " --device=cpu --dtype=float32"
CLASSIFY = f"{IMAGES} --name=x --out_dir=new"
RECLASSIFY = f"{IMAGES} --name=classes --out_dir=classes --resume"
REPORT = "results/e run --device=cpu --prompts=1 --prompt_tokens=6 --new_tokens=3 --out=new.html"
RECORD = {"timestamp": 0, "icao24": "a", "callsign": "b", "vertical_rate": 2000}
NOVELS = "--tokenizer=bpe270 --source=novels --out=new"


class NoBar(tqdm.tqdm):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs | {"disable": True})


def without_bars(patch) -> None:
    for module in (augment, evaluation.rows, evaluation.texts, data.corpus):
        patch.setattr(module, "tqdm", NoBar)


@pytest.fixture(scope="module")
def whole(token_folder, tmp_path_factory) -> Path:
    """A folder with all that the programs read: two runs with their token files, a label store, tables.

    Everything in it is relative to it.
    """
    folder = tmp_path_factory.mktemp("fuzz")
    shutil.copytree(token_folder, folder / BPE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        without_bars(patch)
        data.grammar.prepare.prepare(folder / "data/grammar/words", "words", GRAMMAR)
        config = train.TrainConfig(
            **TINY | dict(dataset="demo", name="run", out_dir="run", max_steps=3, eval_interval=3)
        )
        assert train_in_process(config, folder / BPE) == 0
        config = train.TrainConfig(
            **TINY
            | dict(
                dataset="grammar",
                tokenizer="words",
                name="words",
                out_dir="words",
                max_steps=2,
                eval_interval=2,
            )
        )
        assert train_in_process(config, folder / "data/grammar/words") == 0
        for run in ("run", "words"):  # as if the project were here
            for path in (folder / run).glob("*/config.json"):
                path.write_text(path.read_text().replace(str(folder) + "/", ""))
        patch.setattr("data.prepared.ROOT", folder)
        for module in (training.text, augment):
            patch.setattr(module, "prepared", lambda *_: folder / BPE)
        assert augment.main(LABELS.split()) == 0
        assert eval_diversity.main([*EVAL.split(), "--out=results/e"]) == 0
        assert PROGRAMS["frontier"](FRONTIER.split()) == 0
        shape = labs.classes.sets.KINDS["mnist"].shape
        write_mnist(folder / "images", made(60, shape, 10, 0), made(20, shape, 10, 1))
        assert train.main(RECLASSIFY.removesuffix(" --resume").split()) == 0
    (folder / "config").symlink_to(ROOT / "config")
    (folder / "prompts.txt").write_text("the\n")
    (folder / "text").mkdir()
    for split in ("train", "valid", "test"):
        (folder / f"text/wiki.{split}.tokens").write_text(" \n = a title = \n \n some words of text \n" * 30)
    (folder / "novels").mkdir()
    for name in "abcde":
        (folder / f"novels/{name}.txt").write_text(f"some words of {name}\n" * 40)
    (folder / "novels/rows.jsonl").write_text('{"text": "a row of words"}\n' * 3)
    (folder / "novels/packed.txt.gz").write_bytes(gzip.compress(b"packed words\n" * 40))
    return folder


UNSHOWN = (ResourceWarning, DeprecationWarning, PendingDeprecationWarning)  # by default


class Result:
    def __init__(self, code: int, err: str, folder: Path, changed: list[str]):
        self.code, self.err, self.folder, self.changed = code, err, folder, changed


def digests(folder: Path) -> dict[str, str]:
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.name != ".lock"
    }


def no_training(runs, *_, **__) -> None:
    if runs:
        pytest.fail("it went on to train")


@pytest.fixture
def call(whole, tmp_path, monkeypatch, capfd):
    """call(program, arguments, {file: its content, or a function of the old one}) -> Result.

    Of one run, in a copy of `whole`.
    """

    def one(program: str, arguments, damage=None) -> Result:
        folder = tmp_path / "here"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(whole, folder, symlinks=True)
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
        for module in (table, measures.search):
            monkeypatch.setattr(module, "train_all", no_training)
        monkeypatch.setattr(
            sys, "argv", [program, *(arguments.split() if isinstance(arguments, str) else arguments)]
        )
        before, handlers = digests(folder), {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
        capfd.readouterr()
        try:
            with warnings.catch_warnings(
                record=True, action="default"
            ) as warned:  # they would be further lines on stderr
                cli(PROGRAMS[program])()
        except SystemExit as e:
            code = e.code
        finally:
            for s, handler in handlers.items():
                signal.signal(s, handler)
        after = digests(folder)
        return Result(
            code,
            capfd.readouterr().err + "".join(f"{w.message}\n" for w in warned if w.category not in UNSHOWN),
            folder,
            [f for f in before if after.get(f) != before[f]],
        )

    return one


def refused(result: Result, program: str, says: str = "") -> None:
    assert result.code == 2, (result.code, result.err)
    assert (
        result.err.startswith(f"{program}: error: ")
        and result.err.count("\n") == 1
        and "Traceback" not in result.err
    ), result.err
    assert says in result.err and len(result.err) < 1500, result.err
    assert result.err.removesuffix("\n").isprintable(), result.err  # nothing that a terminal obeys
    assert not result.changed


# ---- how a file can be wrong -------------------------------------------------------------------------------


def changed(**keys):
    """A JSON file with other values; None takes a key away."""
    return lambda old: json.dumps(
        {k: v for k, v in {**json.loads(old), **keys}.items() if v is not None or k not in keys}
    )


def twice(value: object) -> object:
    """A list of two evaluations: a single one is no curve."""
    return value * 2 if isinstance(value, list) else value


def row(**keys):
    """A store whose first row has other values."""

    def edit(old):
        first, *others = old.decode().split("\n")
        return "\n".join([json.dumps({**json.loads(first), **keys}), *others])

    return edit


def ids(value: int):
    """A token file whose last id is another one."""
    return lambda old: old[:-2] + np.uint16(value).tobytes()


def arrays(**changes):
    """A truth file with other arrays."""

    def edit(old):
        content = dict(np.load(io.BytesIO(old)))
        content.update({k: change(content[k]) for k, change in changes.items()})
        out = io.BytesIO()
        np.savez(out, **content)
        return out.getvalue()

    return edit


def tensors(change):
    return lambda old: save({k: change(v) for k, v in load(old).items()})


def saved(content):
    """An optimizer.pt that holds something else."""
    out = io.BytesIO()
    torch.save(content, out)
    return out.getvalue()


DEEP = "[" * 100_000
NOT_JSON = ["", "{", "[]", "null", "7", '"x"', DEEP, b"\xff\xfe", '{"a": ' + "9" * 5000 + "}"]
NO_ROWS = NOT_JSON[1:]  # an empty file is a store without rows
NAMES = [
    "/etc/x",
    "../../x",
    "a/b",
    "a\\b",
    "",
    " ",
    ".x",
    "=1+1",
    "+x",
    "-x",
    "@x",
    "a|b",
    "a\nb",
    "a\x1b[2J",
    "x" * 500,
    "\u202ex",
    "human",
    "unigram_noise",
    "unigram noise",
    "LOOP",
    7,
    None,
    ["x"],
]
BIG = "9" * 25

CASES = [
    # flags and config files
    *[
        ("train", f"{TRAIN} --{flag}", {}, says)
        for flag, says in [
            ("learning_rat=1", "did you mean"),
            ("n_layer=x", "n_layer"),
            ("n_layer=0", "n_layer"),
            ("n_layer=100000000", "lower n_layer"),
            ("n_embd=100000000", "lower n_layer"),
            (f"block_size={BIG}", "block_size"),
            (f"batch_size={BIG}", "batch_size"),
            ("batch_size=100000000000", "batch_size"),
            ("beta1=1", "beta1 = 1.0"),
            ("beta2=-1", "beta2"),
            ("seed=-1", "seed"),
            (f"seed={BIG}", "seed"),
            ("seed=9223372036854775808", "seed"),
            ("learning_rate=nan", "learning_rate"),
            (f"learning_rate=1{'0' * 400}", "learning_rate"),
            ("tokenizer=bpe999999999", "too large"),
            ("tokenizer=bpe" + "9" * 5000, "tokenizer"),
            ("tokenizer=gpt4", "tokenizer"),
            ("dataset=../x", "dataset"),
            ("source=/nosuch", ""),
            ("init_from=resume", "--resume goes on with out_dir"),
            ("init_from=out/nosuch", "no folder 'out/nosuch'"),
            ("init_from=~/nosuch/x", "no folder"),
            ("init_from=a/b/c", "no folder"),
            ("init_from=run/nosuch", "no folder"),
            ("head=hexmax", "hexmax"),
            ("head_args=7", "head_args"),
            ("head_args.x=1", "head_args"),
            ("head_args=" + "[" * 5000, "head_args"),
            ("device=tpu", "device"),
            ("dtype=int8", "dtype"),
            ("name=a/b", "name"),
            ("out_dir=/dev/null/x", ""),
            ("out_dir=prompts.txt", ""),
            ("resume", "no checkpoint"),
            ("max_steps=1e9", "max_steps"),
            ("trunk_args.x=1", "trunk_args = {'x': 1}"),
            ("learning_rate=1e308 --optimizer=muon", "learning_rate must lie between"),
            ("prior_sigma=1e308 --bayesian", "prior_sigma must lie between"),
            ("seed=0x" + "f" * 5000, "seed must lie between"),
            ("head_args.eps=1e308", "head_args must lie between"),
        ]
    ],
    *[
        (p, ["c.py", *shlex.split(a)], {"c.py": f"{key} = {value!a}"}, f"c.py: {key} holds")
        for value in ("\0", "\ud800")
        for p, a, key in (
            ("train", TRAIN, "source"),
            ("train", TRAIN, "out_dir"),
            ("train", CLASSIFY, "source"),
            ("table", "--name=t", "flags"),
        )
    ],
    ("train", f"c.py {TRAIN}", {"c.py": "head_args = {'a\x1b[2J': 1}"}, "a\\x1b[2J"),
    ("table", ["--name=t", "--rows=['a\x1b[2J']", "--seeds=[1]"], {}, "a\\x1b[2J"),
    *[
        ("train", f"{CLASSIFY} --{flag}", {}, says)
        for flag, says in [
            ("learning_rat=1", "did you mean"),
            ("head=hexmax", "hexmax"),
            ("head_args.x=1", "head_args"),
            ("trunk_args.layers=Conv[9", "is no layer"),
            ("trunk_args.layers=FC[0]", "FC[0] is not as FC[256]"),
            ("trunk_args.layers=Pad[99999999999999]", "lower the sizes in layers"),
            ("trunk_args.layers=7", "give a line of layers"),
            ("trunk_args.x=7", "does not take trunk_args"),
            ("n_embd=7", "n_embd = 7 with dataset = 'mnist'"),
            ("batch_size=1" + "0" * 24, "batch_size must lie between"),
            ("batch_size=1" + "0" * 18, "lower the sizes in layers, batch_size"),
            ("weight_decay=1e308", "weight_decay must lie between"),
            ("learning_rate=1e308 --optimizer=sgd", "learning_rate must lie between"),
            ("seed=-1", "seed"),
            ("source=/nosuch", "/nosuch"),
            ("source=novels", "novels"),
            ("dataset=nosuch", "trunk_args"),
            ("device=tpu", "device"),
            ("dtype=int8", "dtype"),
            ("name=a/b", "name"),
            ("out_dir=/dev/null/x", ""),
            ("out_dir=prompts.txt", ""),
            ("out_dir=classes", "holds a run"),
            ("resume", "no checkpoint"),
        ]
    ],
    *[
        ("train", RECLASSIFY, {"classes/last/progress.json": changed(**{k: v})}, "cannot be read")
        for k, v in (("step", "x"), ("best_val_nll", None), ("best_val_error", "7"), ("tokens", None))
    ],
    (
        "train",
        RECLASSIFY,
        {"classes/last/config.json": changed(trunk_args={"layers": "FC[5]"})},
        "trunk_args",
    ),
    ("train", RECLASSIFY, {"classes/last/optimizer.pt": b"\x80\x04cos\nsystem\n."}, "optimizer.pt"),
    *[
        ("report", arguments, {}, says)
        for arguments, says in (
            ([], "shown is missing"),
            ([""], "'' is neither a table nor a run"),
            (["/"], "'/' is neither a table nor a run"),
            (["results/nosuch"], "neither a table nor a run"),
            (["a\x1b[2J"], "a\\x1b[2J"),
            (["results/e", "--prompts=0"], "prompts"),
            (["results/e", "--out=results"], "results"),
            (["run", "--new_tokens=99"], "new_tokens"),
            (["run", "words"], "different token files"),
            (["run", "--data=novels"], "novels"),
        )
    ],
    *[
        ("text", arguments, damage, says)
        for arguments, damage, says in (
            ("--out=new", {}, "--source=FOLDER"),
            ("--out=new --source=nosuch", {}, "nosuch"),
            (f"{NOVELS} --tokenizer=gpt9", {}, "gpt9"),
            (f"{NOVELS} --column=x", {}, "has no column 'x'"),
            (f"{NOVELS} --out=prompts.txt", {}, "prompts.txt"),
            ("--out=new --source=run/best/config.json", {}, "config.json"),
            (NOVELS, {"novels/a.txt": b"\xff\xfe"}, "a.txt"),
            (NOVELS, {"novels/packed.txt.gz": b"\x1f\x8b\x08"}, "packed.txt.gz"),
            (NOVELS, {"novels/new.parquet": b"PAR1"}, "new.parquet"),
            *(
                (NOVELS, {"novels/rows.jsonl": bad}, "rows.jsonl, line 1")
                for bad in (*NOT_JSON[1:-2], NOT_JSON[-1], '{"text": 7}', '{"text": "\\ud800"}')
            ),
        )
    ],
    # an output without a name
    *[
        (p, f"{a} --out={out}", {}, "is a folder: give a file's name")
        for out in ("/", ".")
        for p, a in (("eval", EVAL), ("orders", "run"), ("frontier", FRONTIER))
    ],
    ("embeddings", "/ --scorer=run", {}, "is a folder: give a file's name"),
    ("images", "run --classifier=classes --temperatures=1e308", {}, "temperatures must lie between"),
    ("train", f"{LABELS} --teacher=out/nosuch", {}, "no folder 'out/nosuch'"),
    ("train", f"{LABELS} --candidates=0", {}, "candidates"),
    ("train", f"{LABELS} --positions=999", {}, "positions"),
    ("train", "config/nosuch.py", {}, "no config file"),
    ("train", f"c.py {TRAIN}", {"c.py": b"\xff"}, "c.py"),
    ("train", f"c.py {TRAIN}", {"c.py": "x = \0"}, "c.py"),
    ("train", f"c.py {TRAIN}", {"c.py": "import os"}, "c.py:1"),
    ("train", f"c.py {TRAIN}", {"c.py": "seed = " + "(" * 5000}, "c.py"),
    ("train", f"c.py {TRAIN}", {"c.py": "seed = " + "9" * 5000}, "c.py"),
    ("train", f"c.py {TRAIN}", {"c.py": "seed = " + "-" * 50000 + "1"}, "c.py"),
    *[
        ("train", ["--out_dir=new", *SIZE.split(), f"--name={name}"], {}, "name")
        for name in NAMES
        if isinstance(name, str) and name
    ],
    ("train", "--out_dir=new --resume", {}, "no checkpoint"),
    ("train", "--out_dir=run --resume", {}, "cannot resume"),
    ("train", f"{TRAIN} --max_steps=9 --out_dir=run", {}, "holds a run"),
    *[
        ("augment", a, {}, says)
        for a, says in (
            (TRAIN, "labels = 'true'"),
            (f"{LABELS} --teacher=nosuch/x/y", "no folder"),
            ("nosuch.py", "no config file"),
        )
    ],
    *[
        ("sample", f"{SAMPLE} --{flag}", {}, says)
        for flag, says in [
            (f"seed={BIG}", "seed"),
            ("seed=-1", "seed"),
            ("seed=x", "--seed"),
            ("num_samples=100000000", "num_samples"),
            ("length=0", "length"),
            ("temperature=nan", "temperature"),
            ("top_p=2", "top_p"),
            ("prompts=nosuch", "nosuch"),
            ("prompts=text", "text"),
            ("which=none", "which"),
            ("devic=cpu", ""),
            ("device=cuda:99", "device"),
            ("nosuch", "nosuch"),
        ]
    ],
    ("sample", [*SAMPLE.split(), "--prompt=\udcff"], {}, "not UTF-8"),
    ("sample", f"{SAMPLE} --prompts=prompts.txt", {"prompts.txt": b"\xff\xfe\n"}, "prompts.txt"),
    ("sample", "", {}, "checkpoint is missing"),
    ("sample", "run text", {}, "unexpected argument 'text'"),
    ("sample", "run --length", {}, "--length=VALUE"),
    ("sample", "run --lenght 3 --tempreature=x", {}, "did you mean 'length'?; --tempreature=x: unknown key"),
    ("sample", "nosuch", {}, "nosuch"),
    ("sample", "text", {}, "no checkpoint"),
    *[
        ("eval", f"{EVAL} --{flag}", {}, says)
        for flag, says in [
            (f"seed={BIG}", "seed"),
            ("texts=x", "--texts"),
            (f"texts={BIG}", "texts"),
            ("new_tokens=99", "block_size"),
            ("stride=99", "stride"),
            ("data=nosuch", "nosuch"),
            ("data=text", "train.bin"),
        ]
    ],
    ("eval", f"run {EVAL}", {}, "other=run"),
    ("eval", "", {}, "checkpoints is missing"),
    ("eval", f"{EVAL} --split=train", {}, "split = 'train'"),
    ("eval", f"{EVAL} --protocol=paper --split=test", {}, "split = 'test'"),
    ("eval", f"{EVAL} --loops=0", {}, "loops"),
    *[
        ("eval", [f"{name}=run", *EVAL.split()[1:]], {}, "name")
        for name in NAMES
        if isinstance(name, str) and name and name[0] != "-" and not set(name) & set("=/")
    ],
    *[("frontier", [f"{name}=run", *FRONTIER.split()[1:]], {}, "name") for name in ("a|b", "human", "LOOP")],
    ("eval", f"words {EVAL}", {}, "different token files"),
    *[
        ("embeddings", arguments, damage, says)
        for arguments, damage, says in (
            ("results/e", {}, "--scorer is missing"),
            ("results/e --scorer=run --texts=0", {}, "texts = 0"),
            ("results/e --scorer=run", {}, "needs at least 10"),
            (["results/e", "--scorer=run", "--rows=['other']"], {}, "no texts of 'other'; it has "),
            ("results/none --scorer=run", {}, "results/none.samples has no texts"),
            ("results/e --scorer=run", {"results/e.samples/human.jsonl": "[1"}, "human.jsonl"),
            *[("results/e --scorer=run", {"results/e.jsonl": bad}, "results/e.jsonl") for bad in NO_ROWS],
        )
    ],
    *[
        ("frontier", a, {}, says)
        for a, says in (
            (f"{FRONTIER} --temperatures -1", "temperature"),
            (f"{FRONTIER} --temperatures x", "temperatures"),
            (f"{FRONTIER} --temperatures=[]", "temperatures"),
        )
    ],
    ("export", "run", {}, "folder"),
    ("export", "run text", {}, "exists"),
    ("export", "nosuch new", {}, "no checkpoint"),
    ("table", "", {}, "rows"),
    ("table", "--rows=baselin --overlay=tiny", {}, "no config file config/baselin.py"),
    ("table", "--name=../t --rows=['baseline']", {}, "name"),
    *[
        ("table", [*TABLE, f"--{flag}"], {}, says)
        for flag, says in [
            ("rows=['']", "rows"),
            ("rows=[None]", "rows"),
            ("rows=[7]", "rows"),
            ("rows=[['baseline']]", "rows"),
            ("rows=['baseline \"x']", "quotation"),
            ("rows=['../x']", "name"),
            ("rows=['baseline --teacher={sed}']", "{sed}"),
            ("rows=['baseline --seed={seed']", "seed"),
            ("rows=['baseline', 'baseline']", "twice"),
            ("seeds=['x']", "seeds"),
            ("seeds=[1.5]", "seeds"),
            ("seeds=[-1]", "seed"),
            ("seeds=[]", "seeds"),
            ("jobs=0", "jobs"),
            ("evaluate=--nosuch=1", "--nosuch"),
            ("evaluate='", "quotation"),
            ("overlay=../x", "name"),
            ("halves=1", "halves"),
        ]
    ],
    *[
        ("demo", a, {}, says)
        for a, says in (
            ("--tokenizer=bpe999999999", "too large"),
            ("--tokenizer=gpt4", "unknown tokenizer"),
            ("--tokenizer=bpe300 --out=/dev/null/x", ""),
            ("--tokenizer=bpe300 --out=prompts.txt", ""),
            (f"--tokenizer=bpe300 --out={BPE}", "prepared from source"),
            ("--nosuch", "--nosuch"),
            ("--tokenizer=words --out=new", "words"),
        )
    ],
    *[
        ("grammar", ["--out=new", f"--source={s}"], {}, "source")
        for s in ("train=x", "x=1", "train=1", "seed", "nouns=" + BIG)
    ],
    ("grammar", "--tokenizer=gpt2 --out=new", {}, "tokenizer"),
    *[
        ("synthetic", ["--out=new", f"--source={s}"], {}, "source")
        for s in ("stairs", "walk x=1", "step length=x", "product train=0", "step length=" + BIG)
    ],
    ("synthetic", ["--out=new", "--source=walk length=500"], {}, "length = 500"),
    ("synthetic", "--tokenizer=gpt2 --out=new", {}, "tokenizer"),
    *[
        ("climbs", f"--out=new --source={s}", damage, says)
        for s, damage, says in (
            ("nosuch", {}, "nosuch"),
            ("data", {}, ""),
            ("prompts.txt", {}, "JSON"),
            ("a.json", {"a.json": "[1]"}, "list of ADS-B records"),
            ("a.json", {"a.json": '[{"timestamp": 1}]'}, "no column icao24"),
            ("a.json", {"a.json": b"\xff"}, "UTF-8"),
            ("a.json", {"a.json": "[" * 99999}, "JSON"),
            ("a.json.gz", {"a.json.gz": b"\x1f\x8b\x08"}, "gzip"),
            ("a.json", {"a.json": '[{"timestamp": ' + "9" * 5000 + "}]"}, "JSON"),
            *(
                ("a.json", {"a.json": json.dumps([RECORD, {**RECORD, key: value}])}, f"a.json: {key} = ")
                for key, value in (
                    ("timestamp", [1]),
                    ("timestamp", 10**400),
                    ("vertical_rate", [1]),
                    ("vertical_rate", 1e308),
                    ("icao24", "\ud800"),
                    ("callsign", "a\x1b[2J"),
                )
            ),
        )
    ],
    ("climbs", ["--out=new", "--source=simulated length=500"], {}, "length = 500"),
    ("climbs", "--tokenizer=gpt2 --out=new", {}, "tokenizer"),
    *[
        ("mazes", ["--out=new", f"--source={s}"], {}, says)
        for s, says in (
            ("walk", "'walk' is not a setting of the mazes"),
            ("walls=x", "walls=x"),
            ("height=8", "height = 8: must be odd"),
            ("width=" + BIG, "must be at most 51"),
            ("height=3 width=3 distance=9", "distance = 9"),
        )
    ],
    ("mazes", "--tokenizer=gpt2 --out=new", {}, "tokenizer"),
    *[
        ("image_tokens", ["--out=new", f"--source={s}"], damage, says)
        for s, damage, says in (
            ("nist", {}, "'nist' is not one of"),
            ("digits jpeg", {}, "'jpeg'"),
            ("digits vq codes=x", {}, "codes=x"),
            ("digits vq patch=3", {}, "patch = 3"),
            ("digits patches codes=" + BIG, {}, "codes"),
            ("mnist vq in=nosuch", {}, "nosuch"),
            ("mnist vq in=text", {}, "text"),
            ("mnist vq in=m", {"m/train-images-idx3-ubyte": b"\0\0\x08\x03"}, "no IDX file"),
            ("files codes=3 classes=2 in=text", {}, "train_codes.npy"),
            ("files codes=3 classes=2 in=f", {"f/train_codes.npy": b"\x93NUMPY"}, "cut short"),
            ("files codes=3 classes=2 in=f", {"f/train_codes.npy": b"\x80\x04."}, "cut short"),
            ("files codes=3", {}, "classes"),
        )
    ],
    ("image_tokens", "--tokenizer=gpt2 --out=new", {}, "tokenizer"),
    *[
        ("sample_images", f"run --device=cpu {flag}", {}, says)
        for flag, says in (
            ("", "not on image tokens"),
            ("--cfg=0", "cfg = 0"),
            ("--grid=x", "grid"),
            ("--class=x", "class"),
            ("--out=x", "out = 'x'"),
            ("--out=/dev/null/x.png", ""),
            ("--seed=-1", "seed"),
            ("--device=cuda:99", "device"),
        )
    ],
    ("sample_images", "nosuch", {}, "nosuch"),
    *[
        ("images", f"run --device=cpu {flag}", {}, says)
        for flag, says in (
            ("", "train.py config/mnist_brief.py"),
            ("--classifier=run", "not on image tokens"),
            ("--classifier=run --images=1", "images = 1"),
            ("--classifier=run --cfg=x", "cfg"),
            ("--classifier=run --top_k=-1", "top_k"),
        )
    ],
    *[
        ("wiki", f"--tokenizer=bpe270 --out=new --source={s}", damage, says)
        for s, damage, says in (
            ("nosuch", {}, "nosuch"),
            ("data", {}, "neither"),
            ("prompts.txt", {}, "not a folder"),
            ("text", {"text/wiki.train.tokens": b"\xff" * 999}, "wiki.train.tokens"),
            ("text", {"text/wiki.train.tokens": ""}, ""),
            ("text", {"text/wiki.train.2.tokens": "x"}, "more than one"),
            ("pq", {"pq/train-0.parquet": b"PAR1 no"}, "parquet"),
        )
    ],
    # a checkpoint that somebody else wrote
    *[
        ("sample", SAMPLE, {"run/best/config.json": changed(**{key: value})}, key)
        for key, value in [
            ("n_layer", "2"),
            ("n_layer", 1.5),
            ("n_layer", True),
            ("n_layer", -1),
            ("n_layer", 10**8),
            ("n_embd", 10**9),
            ("n_head", 0),
            ("block_size", [16]),
            ("vocab_size", 10**12),
            ("vocab_size", None),
            ("dropout", "0"),
            ("dropout", 7),
            ("head", 7),
            ("head", "x"),
            ("head_args", [1]),
            ("head_args", {"x": 1}),
            ("bayesian", 1),
            ("bayesian", "no"),
            ("prior_sigma", {}),
            ("tokenizer", 7),
            ("tokenizer_fingerprint", None),
            ("trunk_args", {"x": 1}),
            ("data", 7),
            ("max_steps", "9"),
        ]
    ],
    *[("sample", SAMPLE, {"run/best/config.json": changed(name=name)}, "") for name in NAMES],
    *[
        ("eval", f"{EVAL} --out=results/e", {"run/best/config.json": changed(name=name)}, "")
        for name in ("/tmp/x", "../../x", "unigram_noise")
    ],
    *[
        ("eval", EVAL, {"run/best/config.json": changed(**{key: value})}, says)
        for key, value, says in [
            ("data", "/old/place/data/demo/bpe300", "--data"),
            ("data", None, "data"),
            ("data_sha256", 7, "data_sha256"),
            ("dataset", None, "dataset"),
            ("data", "text", "train.bin"),
            ("data", "a\x1b[2J", "'\\x1b'"),
            ("dataset", "a\x1b]0;x\x07", "'\\x1b'"),
            ("source", "\ud800", "'\\ud800'"),
        ]
    ],
    *[
        (p, a, {f"run/best/{file}": bad}, file)
        for bad in NOT_JSON
        for p, a, file in (("sample", SAMPLE, "config.json"), ("export", "run new", "progress.json"))
    ],
    *[
        ("sample", SAMPLE, {"run/best/progress.json": changed(step=step)}, "progress.json")
        for step in ("3", -1, 1.5, None, [])
    ],
    *[
        ("train", RESUME, {"run/last/progress.json": changed(**{k: v})}, k)
        for k, v in (("step", "x"), ("tokens", None), ("best_val_nll", "x"), ("val_nll", []))
    ],
    *[
        ("train", RESUME, {"run/last/optimizer.pt": saved(content)}, "optimizer.pt")
        for content in ([], {}, {"state": {}, "param_groups": []}, torch.zeros(3))
    ],
    ("train", RESUME, {"run/last/optimizer.pt": b"\x80\x04cos\nsystem\n(S'touch harm'\ntR."}, "optimizer.pt"),
    ("train", RESUME, {"run/last/config.json": changed(n_head=1)}, "n_head"),
    ("sample", SAMPLE, {"run/best/model.safetensors": tensors(lambda t: t.to(torch.int32))}, "int32"),
    ("sample", SAMPLE, {"run/best/model.safetensors": tensors(lambda t: t[:1].clone())}, "does not fit"),
    *[
        ("sample", SAMPLE, {"run/best/tokenizer.json": bad}, "tokenizer.json")
        for bad in (*NOT_JSON[:5], '{"model": {"type": "BPE"}}')
    ],
    (
        "sample",
        SAMPLE,
        {
            "run/best/tokenizer.json": '{"version":"1.0","added_tokens":[],'
            '"model":{"type":"WordLevel","vocab":{"a":5},"unk_token":"a"}}'
        },
        "tokenizer.json",
    ),
    (
        "sample",
        SAMPLE,
        {
            "run/best/tokenizer.json": '{"version":"1.0","added_tokens":[],'
            '"model":{"type":"Unigram","unk_id":0,"vocab":[["a",0.0]]}}'
        },
        "tokenizer.json",
    ),
    # a teacher in transformers' format
    *[
        ("train", f"{TRAIN} --init_from=hf", {"hf/config.json": c}, "hf")
        for c in (
            "{",
            "[]",
            '{"model_type": "bert"}',
            '{"model_type": "gpt2", "n_layer": 100000000}',
            '{"model_type": "gpt2", "n_layer": "x"}',
            '{"model_type": "gpt2", "auto_map": {"AutoConfig": "x.X"}}',
        )
    ],
    # token files, label stores, truth
    *[
        (p, a, {f"{BPE}/{file}.bin": ids(300)}, f"{file}.bin")
        for p, a, file in (
            ("train", TRAIN, "train"),
            ("train", TRAIN, "validation"),
            ("eval", EVAL, "test"),
            ("augment", LABELS, "train"),
        )
    ],
    *[
        ("eval", EVAL, {f"{BPE}/test.json": changed(**{k: v})}, "test.json")
        for k, v in (
            ("tokens", "9"),
            ("vocab_size", -1),
            ("vocab_size", 1e400),
            ("words", "x"),
            ("sha256", 7),
            ("fingerprint", []),
            ("tokens", None),
        )
    ],
    *[("eval", EVAL, {f"{BPE}/test.json": bad}, "test.json") for bad in NOT_JSON],
    *[
        ("eval", EVAL, {f"{BPE}/test.bin": bad}, "test.bin")
        for bad in (
            b"",
            b"NHTOKENS",
            b"\0" * 100,
            lambda old: old[:-1],
            lambda old: old[:16] + b"\xff" * 8 + old[24:],
        )
    ],
    *[
        ("eval", TRUTH, {"data/grammar/words/test.truth.npz": arrays(**{k: change})}, "test.truth.npz")
        for k, change in [
            ("states", lambda s: s + 10**6),
            ("states", lambda s: s[:-1]),
            ("states", lambda s: s.astype(float) * np.nan),
            ("klass", lambda t: t + 99),
            ("after", lambda t: t + 999),
            ("theme", lambda t: t - 9),
            ("syntax", lambda t: t[:, :1]),
            ("lexicon", lambda t: -t),
            ("lexicon", lambda t: t[0]),
            ("info", lambda t: np.array("{}")),
            ("info", lambda t: np.array("[")),
        ]
    ],
    # tables and figures
    *[("eval", f"{EVAL} --out=results/e", {"results/e.jsonl": bad}, "results/e.jsonl") for bad in NO_ROWS],
    *[
        ("eval", f"{EVAL} --out=results/e", {"results/e.jsonl": row(**{k: v})}, "results/e")
        for k, v in (("name", "../x"), ("name", ["x"]), ("settings", 7), ("name", 7))
    ],
    *[("frontier", FRONTIER, {"results/f.jsonl": bad}, "results/f.jsonl") for bad in NO_ROWS],
    *[("orders", "run --out=results/o", {"results/o.jsonl": bad}, "results/o.jsonl") for bad in NO_ROWS],
    ("orders", "", {}, "checkpoints is missing"),
    ("orders", "nothing", {}, "nothing"),
    ("orders", "run words", {}, "different token files"),
    ("orders", "run --samplers", {}, "--samplers needs a corpus whose truth is known"),
    ("sample", "run --device=cpu --infill=<3>", {}, "reads from left to right"),
    ("sample", f"{SAMPLE} --infill=<3>", {}, "leave --prompt out"),
    ("sample", f"{SAMPLE} --burst --density", {}, "--burst and --density are two ways"),
    ("train", f"{TRAIN} --order=backwards", {}, "order = 'backwards'"),
    ("train", f"{TRAIN} --curriculum=random", {}, "curriculum = 'random'"),
    ("frontier", FRONTIER, {"results/f.jsonl": '{"settings": {}, "rows": [7]}'}, "results/f.jsonl"),
    *[
        (program, TABLE, {"results/t.jsonl": bad}, "results/t.jsonl")
        for bad in NO_ROWS
        for program in ("table", "tune")
    ],
    ("table", [*TABLE, "--tuned"], {}, "seeds"),
    *[
        ("tune", [*TABLE, f"--space={bad}"], {}, "space")
        for bad in ("x", "{}", "{'gain': 1}", "{'n': [1, 2]}")
    ],
]
STORE = [  # a label store's files: (ending, content, what the line says)
    *[(".json", bad, "store") for bad in NOT_JSON],
    *[
        (".json", changed(**{k: v}), "store")
        for k, v in (("windows", 1), ("m", 0), ("k", 2.5), ("k", 10**9), ("windows", "x"))
    ],
    (".bin", lambda old: old[:-1], "store"),
    (".bin", lambda old: old[:8] + b"\xfe" * (len(old) - 8), "damaged"),
    (".bin", b"", "store"),
]


def short(value) -> str:
    return "".join(c if c.isalnum() or c in "=._/-" else "_" for c in str(value))[-60:]


@pytest.mark.parametrize(
    "program, arguments, damage, says", CASES, ids=[f"{i}-{c[0]}-{short(c[1])}" for i, c in enumerate(CASES)]
)
def test_bad_input_is_refused_in_one_line(call, program, arguments, damage, says):
    refused(call(program, arguments, damage), program, says)


@pytest.mark.parametrize("ending, content, says", STORE)
def test_a_damaged_label_store_is_refused(call, whole, ending, content, says):
    (store,) = (whole / BPE).glob("*.labels-*" + ending)
    refused(call("train", LABELS, {f"{BPE}/{store.name}": content}), "train", says)


def test_the_commands_that_are_damaged_here_work_when_whole(call):
    """Else a case could be refused for another reason than its damage."""
    for program, arguments in (
        ("train", TRAIN),
        ("train", RESUME),
        ("train", LABELS),
        ("sample", SAMPLE),
        ("sample", f"{SAMPLE} --prompts=prompts.txt"),
        ("eval", f"{EVAL} --out=results/e"),
        ("eval", TRUTH),
        ("frontier", FRONTIER),
        ("orders", "run --out=results/o"),
        ("export", "run new"),
        ("train", CLASSIFY),
        ("train", RECLASSIFY),
        ("report", REPORT),
        ("text", NOVELS),
        ("wiki", "--tokenizer=bpe270 --out=new --source=text"),
    ):
        result = call(program, arguments)
        assert result.code == 0, (program, result.err)
    with pytest.raises(pytest.fail.Exception, match="went on to train"):
        call("table", TABLE)
    with pytest.raises(pytest.fail.Exception, match="went on to train"):
        call("tune", TABLE)


# ---- as processes: what cannot be seen from inside ---------------------------------------------------------


def process(*command, code: int = 2, **environment) -> subprocess.CompletedProcess:
    env = {
        k: v
        for k, v in os.environ.items()
        if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    }
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, env={**env, **environment}
    )
    assert done.returncode == code and b"Traceback" not in done.stderr, done.stderr
    return done


def test_a_prompt_that_is_not_utf8_and_a_terminal_that_is_not(whole):
    assert b"not UTF-8" in process("sample.py", str(whole / "run"), "--prompt", b"\xff").stderr
    shown = process(
        "-c",
        "import sys; from runtime.configurator import cli; cli(lambda argv: print('\\u65e5'))()",
        code=0,
        PYTHONIOENCODING="ascii",
    ).stdout
    assert shown == b"\\u65e5\n"


def test_ctrl_c_during_imports_has_no_traceback():
    code = (
        "import os, signal, time; from runtime import configurator; configurator.quiet_imports(); "
        "os.kill(os.getpid(), signal.SIGINT); time.sleep(9)"
    )
    assert process("-c", code, code=-signal.SIGINT).stderr == b""  # which a shell shows as 130


def test_an_ignored_ctrl_c_stays_ignored():
    """As a script's background jobs inherit it."""
    code = (
        "import os, signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
        "from runtime import configurator; configurator.quiet_imports(); "
        "from runtime.processes import on_stop; on_stop(lambda *_: print('stopping')); "
        "configurator.cli(lambda argv: os.kill(os.getpid(), signal.SIGINT) or print('went on'))()"
    )
    assert process("-c", code, code=0).stdout == b"went on\n"


@pytest.mark.parametrize("closed", [">&-", "2>&-"])
def test_a_closed_stdout_or_stderr_is_no_mistake(closed):
    code = "import sys; from runtime.configurator import cli; cli(lambda argv: print(1, file=sys.stderr))()"
    done = subprocess.run(
        ["bash", "-c", f'{sys.executable} -c "{code}" {closed}'], cwd=ROOT, capture_output=True
    )
    assert done.returncode == 0 and done.stdout == b""
    assert done.stderr == (b"1\n" if closed == ">&-" else b"")


def test_a_reader_that_has_gone_is_no_mistake():
    code = "import sys; from runtime.configurator import cli; cli(lambda argv: print('x' * 10**6))()"
    done = subprocess.run(
        ["bash", "-c", f'set -o pipefail; {sys.executable} -c "{code}" | head -c 1'],
        cwd=ROOT,
        capture_output=True,
    )
    assert done.returncode == 128 + signal.SIGPIPE and done.stderr == b""


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: "
            "you tried to allocate 9 bytes."
        ),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB."),
    ],
    ids=lambda e: type(e).__name__,
)
def test_out_of_memory_says_what_to_lower(error, call, monkeypatch):
    def main(argv):
        raise error

    monkeypatch.setitem(PROGRAMS, "sample", main)
    refused(call("sample", ""), "sample", "out of memory: lower")


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": "1"},
        {"WORLD_SIZE": "2"},
        {"RANK": "0", "WORLD_SIZE": "2"},
        {"RANK": "x"},
        {"RANK": "5", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"},
    ],
    ids=str,
)
def test_torchruns_variables_half_set(variables, call, monkeypatch):
    for key, value in variables.items():
        monkeypatch.setenv(key, value)
    refused(
        call("train", TRAIN),
        "train",
        "the environment has RANK" if "RANK" in variables else "the environment has WORLD_SIZE",
    )


@pytest.mark.parametrize("program", [p for p in PROGRAMS if p != "figures"])
def test_help(program, call, capfd):
    assert call(program, "--help").code == 0


# ---- random damage -----------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    "program, arguments, pattern, times",
    [
        ("sample", SAMPLE, "run/best/*", 12),
        ("train", RESUME, "run/last/*", 6),
        ("train", TRAIN, f"{BPE}/[mtv]*", 4),
        ("train", LABELS, f"{BPE}/*.labels*", 5),
        ("eval", EVAL, f"{BPE}/te*", 5),
        ("eval", TRUTH, "data/grammar/words/test.truth.npz", 5),
        ("sample", "words --device=cpu --length=2 --prompt=the", "words/best/tokenizer.json", 8),
        ("frontier", FRONTIER, "results/f.jsonl", 4),
        ("eval", f"{EVAL} --out=results/e", "results/e.jsonl", 4),
        ("train", RECLASSIFY, "classes/*/*", 4),
        ("train", CLASSIFY, "images/*", 4),
        ("report", REPORT.replace("run ", ""), "results/[ce].*[nd]", 3),
        ("text", NOVELS, "novels/[arp]*", 4),
    ],
)
def test_random_damage_is_refused_or_harmless(call, whole, program, arguments, pattern, times):
    """Each file of it by itself.

    Damage that leaves valid content (another name, another weight) cannot be seen.
    """
    for path in sorted(whole.glob(pattern)):
        name = str(path.relative_to(whole))
        for seed in range(times):
            result = call(
                program, arguments, {name: lambda old: damaged(old, np.random.default_rng((seed, len(name))))}
            )
            if result.code:
                refused(result, program)
            assert "Traceback" not in result.err and "panicked" not in result.err, (name, seed, result.err)
