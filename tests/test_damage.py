"""A value that cannot be, or a damaged file: exit code 2, one line that names the key or the file, no file
changed. What the line says else is not tested."""

import json
import math
import shlex
import shutil
import sys
import warnings
from pathlib import Path

import pytest
import torch

import augment
import data.text.prepare
import data.wikitext103.prepare
import eval_diversity
import report
import sample
import table
import tables.jobs
import train
import training.text
from common.config import cli
from config.defaults import TrainConfig
from data.open import prepared
from tests.fixtures import TINY, handlers_kept, seal, train_in_process

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = {
    **{"train": train.main, "augment": augment.main, "sample": sample.main, "eval": eval_diversity.main},
    **{"table": table.main, "report": report.main},
    **{"text": data.text.prepare.main, "wiki": data.wikitext103.prepare.main},
}
SETTINGS = TINY | dict(block_size=64, batch_size=2, max_steps=3, eval_interval=1, dataset="wikitext103")
SIZE = " ".join(f"--{key}={value}" for key, value in SETTINGS.items())
TRAIN, RESUME = f"--name=x --out_dir=new {SIZE}", f"--name=run --out_dir=run {SIZE} --resume"
LABELS = f"{TRAIN} --head=sigmoid --labels=hard --teacher=run --candidates=3"
SAMPLE = "run --device=cpu --length=2"
EVAL = "run --device=cpu --texts=4 --prompt_tokens=6 --new_tokens=50 --words=4"
CURVE = "--measure=curve run --out=results/e"
TEXT = "--tokenizer=bpe270 --source=novels --out=new"
BPE = "data/wikitext103/bpe300"


def surroundings(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Data and runs lie in `folder`, which is the current one."""
    patch.chdir(folder)
    patch.delenv("TRACEBACK", raising=False)
    patch.setattr("data.open.ROOT", folder)
    for module in (training.text, augment, tables.jobs):
        patch.setattr(module, "prepared", lambda *a: prepared(*a, root=folder / "data"))


@pytest.fixture(scope="module")
def whole(token_folder, tmp_path_factory) -> Path:
    """All that the programs read: a run, its token files, a label store, a row store, texts."""
    folder = tmp_path_factory.mktemp("whole")
    shutil.copytree(token_folder, folder / BPE, ignore=shutil.ignore_patterns("labels-*"))
    (folder / "novels").mkdir()
    for name in "abcde":
        (folder / f"novels/{name}.txt").write_text(f"some words of {name}\n" * 40)
    (folder / "novels/rows.jsonl").write_text('{"text": "a row of words"}\n' * 3)
    (folder / "prompts.txt").write_text("the\n")
    (folder / "settings.py").write_text("max_steps = 1\n")
    with pytest.MonkeyPatch.context() as patch:
        surroundings(patch, folder)
        config = TrainConfig(**SETTINGS | dict(name="run", out_dir="run"))
        assert train_in_process(config, folder / BPE) == 0
        assert augment.main(LABELS.split()) == 0
        assert table.main(CURVE.split()) == 0
    return folder


@pytest.fixture
def call(whole, tmp_path, monkeypatch, capfd):
    """call(program, arguments, {file: its content}) -> (exit code, stderr), in a copy of `whole`.

    sealed: the manifest of a run knows the content, as one by somebody who means harm does.
    """

    def one(program: str, arguments: str | list[str], damage=(), sealed: bool = False):
        here = tmp_path / "here"
        shutil.rmtree(here, ignore_errors=True)
        shutil.copytree(whole, here)
        for name, content in dict(damage).items():
            (here / name).write_bytes(content)
            if sealed and name.startswith("run/"):
                seal((here / name).parent)
        surroundings(monkeypatch, here)
        words = shlex.split(arguments) if isinstance(arguments, str) else arguments
        monkeypatch.setattr(sys, "argv", [program, *words])
        before = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
        capfd.readouterr()
        with pytest.raises(SystemExit) as end, handlers_kept(), warnings.catch_warnings(action="ignore"):
            cli(PROGRAMS[program])
        err = capfd.readouterr().err
        assert "Traceback" not in err and "panicked" not in err, err
        if end.value.code == 2:
            assert err.startswith(f"{program}: error: ") and err.count("\n") == 1 and len(err) < 1500, err
            assert err.removesuffix("\n").isprintable(), err  # nothing that a terminal obeys
            assert [str(path) for path, old in before.items() if path.read_bytes() != old] == []
            assert not (here / "new").exists() or program in ("text", "wiki"), "something was begun"
        return end.value.code, err

    return one


# ---- values ------------------------------------------------------------------------------------------------

BIG = "9" * 25
# Program and a good command of it -> flags that cannot be; each line names its key. What a field's type
# refuses is in test_configurator.py: one of each program is here
FLAGS = {
    ("train", TRAIN): f"seed={BIG} learning_rat=1 tokenizer=gpt4 tokenizer=bpe{'9' * 5000} dataset=../x "
    f"head=hexmax head_args.x=1 head_args={'[' * 5000} trunk_args.x=1 trunk_args.order=backwards device=tpu "
    "out_dir=/dev/null/x out_dir=run source=a\0b overlay=\udcff init_from=out/nosuch min_lr=1 "
    "lr_decay_steps=1 eval_steps=[1,9] keep_true=False micro_batch=7 n_embd=33 trunk=nope "
    + " ".join(f"{key}={2**62}" for key in ("block_size", "n_layer", "n_embd", "batch_size", "max_steps")),
    ("train", f"{TRAIN} --learning_rate=0 --min_lr=0"): "readout_lr=1",
    ("train", f"{TRAIN} --labels=soft --head=soft_targets"): "keep_true=False label_store=False",
    ("train", f"{TRAIN} --head=perturb_max"): "head_args.noise=[1]",
    ("augment", f"{LABELS} --proposals=drawn"): "ppl_threshold=9 keep_true=False",
    ("augment", LABELS): "candidates=0 teacher=out/nosuch labels=true",
    ("sample", SAMPLE): "length=0 samples=101 top_p=2 prompts=nosuch prompts=novels device=cuda:99 "
    "prompt=\udcff",
    ("eval", EVAL): f"seed={BIG} stride=99 loops=0 new_tokens=99 data=nosuch split=train",
    ("table", CURVE): "measure=nosuch measure=order out=/",
    ("table", "--rows=[\"'baseline'\"]"): "rows=[] rows=[7] seeds=['x'] seeds=[-1] jobs=0 overlay=nosuch "
    "evaluate=--nonsense=1 evaluate=--texts=1 rows=['baseline','baseline'] "
    r"rows=['baseline\x20--hed=softmax'] rows=['baseline\x20--teacher={frist}']",
    ("table", "--rows=[\"'baseline'\"] --tuned"): "seeds=[1]",
    ("report", "results/e"): "prompts=0 out=novels",
    ("text", TEXT): "tokenizer=gpt9 tokenizer=run/best/config.json column=x source=nosuch out=prompts.txt",
    ("wiki", "--tokenizer=bpe270 --out=new --source=novels"): "source=nosuch lines=-1",
}


@pytest.mark.parametrize(
    "program, arguments, flag",
    [(program, a, flag) for (program, a), flags in FLAGS.items() for flag in flags.split(" ")],
    ids=lambda text: ascii(text)[-40:],
)
def test_a_value_that_cannot_be_is_refused(call, program, arguments, flag):
    key, _, value = flag.rpartition("--")[2].partition("=")
    code, err = call(program, [*shlex.split(arguments), f"--{flag}"])
    named = [key.partition(".")[0], value] if value.isprintable() and value else [key.partition(".")[0]]
    assert code == 2 and any(name in err for name in named), (code, err)


@pytest.mark.parametrize(
    "program, arguments, name",
    [
        *(("train", "config/nosuch.py", "nosuch.py"), ("train", f"{TRAIN} --resume", "new")),
        *(("train", "baseline", "config/baseline.py"), ("train", "seed=3", "--seed=3")),
        *(("train", f"{TRAIN} --init_from=novels/nosuch", "novels/nosuch"),),
        *(("train", f"{TRAIN} --out_dir=run --head=sigmoid", "head ('softmax', not 'sigmoid')"),),
        *(("sample", "run novels", "novels"), ("sample", "nosuch", "nosuch")),
        *(("eval", "words run", "words"),),
        *(("table", "--measure=orders nosuch", "nosuch"), ("report", "results/nosuch", "nosuch")),
        ("table", "--rows=[\"'baselin'\"]", "config/baselin.py"),
        ("sample", [*SAMPLE.split(), "--infill=<3>"], "infill"),
    ],
)
def test_what_is_not_there_is_named(call, program, arguments, name):
    code, err = call(program, arguments)
    assert code == 2 and name in err


HALF_SET = "RANK=1", "WORLD_SIZE=2", "RANK=0 WORLD_SIZE=2", "RANK=x"


@pytest.mark.parametrize("half", [*HALF_SET, "RANK=5 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=1"])
def test_torchruns_variables_half_set(half, call, monkeypatch):
    variables = dict(each.split("=") for each in half.split())
    for key, value in variables.items():
        monkeypatch.setenv(key, value)
    code, err = call("train", TRAIN)
    assert code == 2 and any(name in err for name in variables)


# ---- files -------------------------------------------------------------------------------------------------

DEEP = b"[" * 99_999
NO_JSON = [b"", b"{", b"[]", b"null", b"7", b'"x"', DEEP, b"\xff\xfe", b'{"a": ' + b"9" * 5000 + b"}"]
NO_JSON += [b'{"a": NaN}', b'{"a": 1e999}', b'{"a": "\\u001b[2J"}', b'{"a": "\\ud800"}']
ROW = {"measure": "m", "definition": 1, "name": "a", "settings": {}}
BAD = {"x": math.nan}, {"name": "../a"}, {"definition": True}, {"settings": 3}, {"training": 3}
NO_ROWS = [b'{"rows": []}', *(json.dumps(ROW | bad).encode() for bad in BAD)]
FILES = {  # program and arguments -> the files that it reads (patterns)
    ("sample", SAMPLE): "run/best/config.json run/best/progress.json run/best/model.safetensors "
    "run/best/tokenizer.json",
    ("train", f"settings.py {TRAIN}"): "settings.py",
    ("train", RESUME): "run/last/optimizer.pt run/last/model.safetensors run/last/progress.json",
    ("train", TRAIN): f"{BPE}/train.bin {BPE}/manifest.json {BPE}/tokenizer.json",
    ("train", LABELS): f"{BPE}/labels-*/labels.bin {BPE}/labels-*/manifest.json",
    ("eval", EVAL): f"{BPE}/test.bin",
    ("table", CURVE): "results/e.jsonl",
    ("report", "results/e --out=new.html"): "results/e.jsonl",
    ("text", TEXT): "novels/a.txt novels/rows.jsonl",
    ("text", "--tokenizer=run/last/tokenizer.json --source=novels --out=new"): "run/last/tokenizer.json",
}
FILES = [(program, a, file) for (program, a), files in FILES.items() for file in files.split()]


@pytest.mark.parametrize("program, arguments, pattern", FILES)
def test_a_damaged_file_is_named(call, whole, program, arguments, pattern):
    (path,) = whole.glob(pattern)
    name, old = str(path.relative_to(whole)), path.read_bytes()
    code, err = call(program, arguments)
    assert code == 0, err  # whole, it is read
    if path.suffix == ".py" or path.name in ("config.json", "progress.json"):  # a mark before it is no damage
        code, err = call(program, arguments, {name: b"\xef\xbb\xbf" + old}, sealed=True)
        assert code == 0, err
    bad = [b"\xff\xfe" + old]
    if path.suffix not in (".txt", ".py"):
        bad = [b"", b"\xff" + old, old[: len(old) // 2]]
    if path.suffix == ".jsonl":
        # of rows of text, one without the column has none
        texts = [line for line in NO_JSON[1:] if not line.startswith((b'{"a": ', b"null"))]
        bad = [old + line + b"\n" for line in (texts if program == "text" else NO_JSON[1:] + NO_ROWS)]
    if path.suffix == ".json":
        bad += NO_JSON if pattern.startswith("run/best") else NO_JSON[1::4]
    if pattern.endswith(("labels.bin", "train.bin", "test.bin")):
        bad.append(old[:-10] + bytes([old[-10] ^ 4]) + old[-9:])  # of an id the low byte: another word
    for content in bad:
        code, err = call(program, arguments, {name: content}, sealed=True)
        assert code == 2 and path.name in err, (content[:80], code, err)


FLIPPED = [("sample", SAMPLE), ("eval", EVAL), ("train", f"{TRAIN} --init_from=run"), ("train", LABELS)]
FLIPPED = [(*command, "best/model.safetensors") for command in FLIPPED]
FLIPPED += [
    ("train", RESUME, f"last/{file}") for file in ("model.safetensors", "optimizer.pt", "manifest.json")
]


@pytest.mark.parametrize("program, arguments, file", [*FLIPPED, ("sample", SAMPLE, "best/tokenizer.json")])
def test_one_flipped_bit_of_a_run_is_named(call, whole, program, arguments, file):
    old = (whole / "run" / file).read_bytes()
    at = len(old) // 2
    code, err = call(program, arguments, {f"run/{file}": old[:at] + bytes([old[at] ^ 1]) + old[at + 1 :]})
    assert code == 2 and file in err, err


VALUES = {  # program, arguments and a JSON file -> values that its keys cannot have; None: without the key
    ("sample", SAMPLE, "run/best/config.json"): dict(
        n_layer=["2", 2, 10**8], n_embd=[10**9], head=[7, "sigmoid"], vocab_size=[None],
        head_args=[{"x": 1}], trunk=["nosuch"], name=["a\x1b[2J", None],
    ),
    ("sample", SAMPLE, "run/best/progress.json"): dict(step=["3", None]),
    ("train", RESUME, "run/last/progress.json"): dict(best_val_nll=["x", math.nan]),
    ("train", RESUME, "run/last/config.json"): dict(n_head=[1]),
    ("eval", EVAL, f"{BPE}/manifest.json"): dict(vocab_size=[10**12]),
}  # fmt: skip


@pytest.mark.parametrize(
    "where, key, value", [(at, key, v) for at, keys in VALUES.items() for key, vs in keys.items() for v in vs]
)
def test_a_value_in_a_file_that_cannot_be_is_refused(call, whole, where, key, value):
    program, arguments, file = where
    content = json.loads((whole / file).read_bytes()) | {key: value}
    content = json.dumps({k: v for k, v in content.items() if v is not None}).encode()
    code, err = call(program, arguments, {file: content}, sealed=True)
    assert code == 2 and any(name in err for name in (key, file, str(Path(file).parent))), err


PICKLE = b"\x80\x04cos\nsystem\n(S'touch harm'\ntR."


@pytest.mark.parametrize("content", [[], {}, {"state": {}, "param_groups": []}, torch.zeros(3), PICKLE])
def test_an_optimizer_of_another_model_is_refused_and_no_code_of_it_runs(call, tmp_path, content):
    if content is not PICKLE:
        torch.save(content, tmp_path / "optimizer.pt")
        content = (tmp_path / "optimizer.pt").read_bytes()
    code, err = call("train", RESUME, {"run/last/optimizer.pt": content}, sealed=True)
    assert code == 2 and "optimizer.pt" in err and not (tmp_path / "here/harm").exists()
