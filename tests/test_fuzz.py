"""Bad input of every kind, at every entry point: exit code 2, one line that says why, no file changed.

CASES is a table that grows with every case found: (program, arguments, {file: its new content}, what the line
says). Behind it, seeded random damage of every file of a prepared folder, of a run and of a store. The labs'
are in tests/labs/test_bad_input.py.
"""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytest
import torch

from measures.store import unfolded
from tests import bad_input
from tests.bad_input import (
    BPE,
    EVAL,
    FRONTIER,
    LABELS,
    MEASURES,
    NOT_A_STORE,
    NOT_JSON,
    NOVELS,
    OUT,
    PROGRAMS,
    PROMPTS,
    READERS,
    REPORT,
    RESUME,
    ROOT,
    SAMPLE,
    SEARCH,
    SIZE,
    TABLE,
    TRAIN,
    TRUTH,
    TUNED,
    Trains,
    arrays,
    changed,
    check_all,
    check_random_damage,
    flags,
    named,
    refused,
    resettled,
    rows,
    saved,
    tensors,
)

call, here, whole = bad_input.call, bad_input.here, bad_input.whole  # fixtures
BIG = "9" * 25
NAMES = [*r"/etc/x ../../x a/b a\b .x =1+1 +x -x @x a|b".split(), "", " ", "a\nb", "a\x1b[2J"]
NAMES += ["x" * 500, "\u202ex", "human", "unigram_noise", "unigram noise", "LOOP", 7, None, ["x"]]
STORE, ORDERS = "results/e.jsonl", MEASURES["orders"]
EVALUATED = [MEASURES[name] for name in ("text", "orders")]  # read as the curve measure's are
CONFIG, PROGRESS, TOKENIZER = "run/best/config.json", "run/best/progress.json", "run/best/tokenizer.json"
MODEL, OPTIMIZER, TRUTHS = "run/best/model.safetensors", "run/last/optimizer.pt", "words/test.truth.npz"
NO_UNKNOWN = '{"version":"1.0","added_tokens":[],"model":{"type":%s}}'

# fmt: off
CASES = [
    # flags and config files
    *flags("train", TRAIN,
        f"n_layer=x n_layer=0 block_size={BIG} batch_size={BIG} batch_size=100000000000 beta2=-1 seed=-1 "
        f"seed={BIG} seed=9223372036854775808 learning_rate=nan learning_rate=1{'0' * 400} tokenizer=gpt4 "
        f"tokenizer=bpe{'9' * 5000} dataset=../x head_args=7 head_args.x=1 head_args={'[' * 5000} "
        "device=tpu dtype=int8 name=a/b max_steps=1e9 order=backwards curriculum=random", {
            "learning_rat=1": "did you mean", "n_layer=100000000": "lower n_layer",
            "n_embd=100000000": "lower n_layer", "beta1=1": "beta1 = 1: must be less than 1",
            "tokenizer=bpe999999999": "too large", "source=/nosuch": "", "head=hexmax": "hexmax",
            "init_from=resume": "--resume goes on with out_dir",
            "init_from=out/nosuch": "no folder 'out/nosuch'",
            "init_from='~/nosuch/x'": "no folder", "init_from=a/b/c": "no folder",
            "init_from=run/nosuch": "no folder", "out_dir=/dev/null/x": "", "out_dir=prompts.txt": "",
            "resume": "no checkpoint", "trunk_args.x=1": "trunk_args = {'x': 1}",
            "learning_rate=1e308 --optimizer=muon": "learning_rate must lie between",
            "prior_sigma=1e308 --bayesian": "prior_sigma must lie between",
            f"seed=0x{'f' * 5000}": "seed must lie between",
            "head_args.eps=1e308": "head_args must lie between",
            "max_steps=9 --out_dir=run": "holds a run",
        }),
    *flags("train", LABELS, "candidates=0 positions=999", {"teacher=out/nosuch": "no folder 'out/nosuch'"}),
    *[
        (p, ["c.py", *a.split()], {"c.py": f"{key} = {value!a}"}, f"c.py: {key} holds")
        for value in ("\0", "\ud800")
        for p, a, key in (("train", TRAIN, "source"), ("train", TRAIN, "out_dir"),
                          ("table", "--name=t", "flags"))
    ],
    *[
        ("train", f"c.py {TRAIN}", {"c.py": content}, says)
        for content, says in (
            ("head_args = {'a\x1b[2J': 1}", "a\\x1b[2J"), (b"\xff", "c.py"), ("x = \0", "c.py"),
            ("import os", "c.py:1"), *((f"seed = {odd}", "c.py") for odd in ("(" * 5000, "9" * 5000)),
            (f"seed = {'-' * 50000}1", "c.py"),
        )
    ],
    *[
        ("train", ["--out_dir=new", *SIZE.split(), f"--name={name}"], {}, "name")
        for name in NAMES if isinstance(name, str) and name
    ],
    ("train", "config/nosuch.py", {}, "no config file"),
    ("train", "--out_dir=new --resume", {}, "no checkpoint"),
    ("train", "--out_dir=run --resume", {}, "cannot resume"),
    ("augment", TRAIN, {}, "labels = 'true'"),
    ("augment", f"{LABELS} --teacher=nosuch/x/y", {}, "no folder"),
    ("augment", "nosuch.py", {}, "no config file"),
    *flags("sample", SAMPLE,
        f"seed={BIG} seed=-1 seed=x num_samples=100000000 length=0 temperature=nan top_p=2 which=none", {
            "prompts=nosuch": "nosuch", "prompts=text": "text", "devic=cpu": "", "device=cuda:99": "device",
            "nosuch": "nosuch", "'infill=<3>'": "leave --prompt out",
            "burst --density": "--burst and --density are two ways",
        }),
    *[
        ("sample", arguments, {}, says)
        for arguments, says in (
            ([*SAMPLE.split(), "--prompt=\udcff"], "not UTF-8"), ("", "checkpoint is missing"),
            ("run text", "unexpected argument 'text'"), ("run --length", "--length=VALUE"),
            ("run --lenght 3 --tempreature=x", "did you mean 'length'?; unknown key 'tempreature'"),
            ("nosuch", "nosuch"), ("text", "no checkpoint"),
            ("run --device=cpu '--infill=<3>'", "reads from left to right"),
            ("run --prompt=x --prompts=prompts.txt", "give one of the two"),
            ("run --top=3", "top = 3: it is of --density"),
        )
    ],
    ("sample", PROMPTS, {"prompts.txt": b"\xff\xfe\n"}, "prompts.txt"),
    *flags("eval", EVAL, f"seed={BIG} texts=x texts={BIG} stride=99 loops=0", {
        "new_tokens=99": "block_size", "data=nosuch": "nosuch", "data=text": "train.bin",
        "split=train": "split = 'train'", "protocol=paper --split=test": "split = 'test'",
    }),
    ("eval", f"run {EVAL}", {}, "other=RUN"),
    ("eval", "", {}, "checkpoints is missing"),
    ("eval", f"words {EVAL}", {}, "different token files"),
    *[
        (p, [f"{name}=run", *a.split()], {}, "name")
        for p, a, names in (("eval", EVAL, NAMES), ("table", FRONTIER, ["a|b", "human", "LOOP"]))
        for name in names if isinstance(name, str) and name and name[0] != "-" and not set(name) & set("=/")
    ],
    *flags("table", f"{FRONTIER} {OUT}", "over=x values=x", {
        "values=-1": "temperature", "over=min_p --values=2": "min_p",
    }),
    ("table", "--measure=orders", {}, "checkpoints is missing"),
    ("table", "--measure=nosuch run", {}, "measure = 'nosuch'"),
    ("table", "--measure=order run", {}, "did you mean 'orders'"),
    ("table", "--measure=orders nosuch", {}, "nosuch"),
    ("table", "--measure=orders run words", {}, "different token files"),
    ("table", "--measure=orders run --samplers", {}, "--samplers needs a corpus whose truth is known"),
    *[  # an output without a name
        (p, f"{a} --out={out}", {}, "is a folder: give a file's name")
        for out in ("/", ".") for p, a in (("eval", EVAL), ("table", "--measure=orders run"),
        ("table", FRONTIER))
    ],
    ("export", "run", {}, "folder"),
    ("export", "run text", {}, "exists"),
    ("export", "nosuch new", {}, "no checkpoint"),
    ("table", "", {}, "rows"),
    ("table", ["--rows=['baselin']", "--overlay=tiny"], {}, "no config file config/baselin.py"),
    ("table", ["--name=../t", "--rows=['baseline']"], {}, "name"),
    ("table", ["--name=t", "--rows=['a\x1b[2J']", "--seeds=[1]"], {}, "a\\x1b[2J"),
    *[
        ("table", [*TABLE, f"--{flag}"], {}, says)
        for flag, says in {
            "rows=['']": "rows", "rows=[None]": "rows", "rows=[7]": "rows", "rows=[['baseline']]": "rows",
            "rows=['baseline \"x']": "quotation", "rows=['../x']": "name",
            "rows=['baseline', 'baseline']": "twice",
            "rows=['baseline --teacher={sed}']": "{sed}", "rows=['baseline --seed={seed']": "seed",
            "seeds=['x']": "seeds", "seeds=[1.5]": "seeds", "seeds=[-1]": "seed", "seeds=[]": "seeds",
            "jobs=0": "jobs", "evaluate=--nosuch=1": "'nosuch'", "evaluate='": "quotation",
            "overlay=../x": "name",
            "halves=1": "halves", "results=prompts.txt": "prompts.txt",
            "measure=nosuch": "measure = 'nosuch'",
        }.items()
    ],
    *[("table", [*SEARCH, f"--space={bad}"], {}, "space") for bad in ("x", "{}", "{'gain': 1}",
    "{'n': [1, 2]}")],
    ("table", [*TUNED, "--seeds=[1]"], {}, "seeds = [1]"),
    ("table", [*TUNED, "--tuning=results/nosuch.jsonl"], {}, "no best point yet"),
    *[
        ("report", arguments, {}, says)
        for arguments, says in (
            ([], "shown is missing"), ([""], "'' is neither a table nor a run"),
            (["/"], "'/' is neither a table nor a run"), (["results/nosuch"], "neither a table nor a run"),
            (["a\x1b[2J"], "a\\x1b[2J"), ("results/e --prompts=0", "prompts"),
            ("results/e --out=results", "results"),
            ("run --new_tokens=99", "new_tokens"), ("run words", "different token files"),
            ("run --data=novels", "novels"),
        )
    ],
    # corpora
    *flags("demo", "--tokenizer=bpe300", "nosuch", {
        "tokenizer=bpe999999999": "too large", "tokenizer=gpt4": "unknown tokenizer", "out=/dev/null/x": "",
        "out=prompts.txt": "", f"out={BPE}": "prepared from source", "tokenizer=words --out=new": "words",
    }),
    *[("grammar", ["--out=new", f"--source={s}"], {}, says)
      for s, says in (
          ("train=x", "'train=x' is not a setting"), ("x=1", "among seed, train"), ("seed", "'seed' is not"),
          ("train=9", "train = 9 must be at least 500"), ("verbs=0", "verbs = 0 must be at least 1"),
          ("nouns=-3", "nouns=-3"), ("nouns=90000", "different stems"), ("nouns=" + BIG, "source"),
      )],
    ("grammar", "--tokenizer=gpt2 --out=new", {}, "tokenizer"),
    *[
        ("text", arguments, damage, says)
        for arguments, damage, says in (
            ("--out=new", {}, "--source=FOLDER"), ("--out=new --source=nosuch", {}, "nosuch"),
            (f"{NOVELS} --tokenizer=gpt9", {}, "gpt9"), (f"{NOVELS} --column=x", {}, "has no column 'x'"),
            (f"{NOVELS} --out=prompts.txt", {}, "prompts.txt"),
            ("--out=new --source=run/best/config.json", {}, "config.json"),
            (NOVELS, {"novels/a.txt": b"\xff\xfe"}, "a.txt"),
            (NOVELS, {"novels/packed.txt.gz": b"\x1f\x8b\x08"}, "packed.txt.gz"),
            (NOVELS, {"novels/new.parquet": b"PAR1"}, "new.parquet"),
            *((NOVELS, {"novels/rows.jsonl": bad}, "rows.jsonl, line 1")
              for bad in (*NOT_JSON[1:-2], NOT_JSON[-1], '{"text": 7}', '{"text": "\\ud800"}')),
        )
    ],
    *[
        ("wiki", f"--tokenizer=bpe270 --out=new --source={s}", damage, says)
        for s, damage, says in (
            ("nosuch", {}, "nosuch"), ("data", {}, "neither"), ("prompts.txt", {}, "not a folder"),
            ("text", {"text/wiki.train.tokens": b"\xff" * 999}, "wiki.train.tokens"),
            ("text", {"text/wiki.train.tokens": ""}, ""),
            ("text", {"text/wiki.train.2.tokens": "x"}, "more than one"),
            ("pq", {"pq/train-0.parquet": b"PAR1 no"}, "parquet"),
        )
    ],
    # a checkpoint that somebody else wrote
    *[
        ("sample", SAMPLE, {CONFIG: changed(**{key: value})}, key)
        for key, values in {
            "n_layer": ["2", 1.5, True, -1, 10**8], "n_embd": [10**9], "n_head": [0], "block_size": [[16]],
            "vocab_size": [10**12, None], "dropout": ["0", 7], "head": [7, "x"], "head_args": [[1], {"x": 1}],
            "bayesian": [1, "no"], "prior_sigma": [{}], "tokenizer": [7], "tokenizer_fingerprint": [None],
            "trunk_args": [{"x": 1}], "data": [7], "max_steps": ["9"],
        }.items()
        for value in values
    ],
    *[("sample", SAMPLE, {CONFIG: changed(name=name)}, "") for name in NAMES],
    *[("eval", f"{EVAL} {OUT}", {CONFIG: changed(name=name)}, "") for name in ("/tmp/x", "../../x",
    "unigram_noise")],
    *[
        ("eval", EVAL, {CONFIG: changed(**{key: value})}, says)
        for key, value, says in [
            ("data", "/old/place/data/demo/bpe300", "--data"), ("data", None, "data"),
            ("data", "text", "train.bin"),
            ("data_sha256", 7, "data_sha256"), ("dataset", None, "dataset"), ("data", "a\x1b[2J", "'\\x1b'"),
            ("dataset", "a\x1b]0;x\x07", "'\\x1b'"), ("source", "\ud800", "'\\ud800'"),
        ]
    ],
    *[(p, a, {f"run/best/{file}": bad}, file) for bad in NOT_JSON
      for p, a, file in (("sample", SAMPLE, "config.json"), ("export", "run new", "progress.json"))],
    *[("sample", SAMPLE, {PROGRESS: changed(step=step)}, "progress.json") for step in ("3", -1, 1.5, None,
    [])],
    *[("train", RESUME, {"run/last/progress.json": changed(**{k: v})}, k)
      for k, v in (("step", "x"), ("tokens", None), ("best_val_nll", "x"), ("val_nll", []))],
    *[("train", RESUME, {OPTIMIZER: saved(content)}, "optimizer.pt")
      for content in ([], {}, {"state": {}, "param_groups": []}, torch.zeros(3))],
    ("train", RESUME, {OPTIMIZER: b"\x80\x04cos\nsystem\n(S'touch harm'\ntR."}, "optimizer.pt"),
    ("train", RESUME, {"run/last/config.json": changed(n_head=1)}, "n_head"),
    ("sample", SAMPLE, {MODEL: tensors(lambda t: t.to(torch.int32))}, "int32"),
    ("sample", SAMPLE, {MODEL: tensors(lambda t: t[:1].clone())}, "does not fit"),
    *[
        ("sample", SAMPLE, {TOKENIZER: bad}, "tokenizer.json")
        for bad in (
            *NOT_JSON[:5], '{"model": {"type": "BPE"}}',
            NO_UNKNOWN % '"WordLevel","vocab":{"a":5},"unk_token":"a"',
            NO_UNKNOWN % '"Unigram","unk_id":0,"vocab":[["a",0.0]]',
        )
    ],
    *[  # a teacher in transformers' format
        ("train", f"{TRAIN} --init_from=hf", {"hf/config.json": c}, "hf")
        for c in (
            "{", "[]", '{"model_type": "bert"}', '{"model_type": "gpt2", "n_layer": 100000000}',
            '{"model_type": "gpt2", "n_layer": "x"}',
            '{"model_type": "gpt2", "auto_map": {"AutoConfig": "x.X"}}',
        )
    ],
    # token files, truth
    *[
        (p, a, {f"{BPE}/{file}.bin": lambda old: old[:-2] + np.uint16(300).tobytes()}, f"{file}.bin")
        for p, a, file in (("train", TRAIN, "train"), ("train", TRAIN, "validation"), ("eval", EVAL, "test"),
                           ("augment", LABELS, "train"))
    ],
    *[
        ("eval", EVAL, {f"{BPE}/test.json": changed(**{k: v})}, "test.json")
        for k, v in (("tokens", "9"), ("vocab_size", -1), ("vocab_size", 1e400), ("words", "x"),
                     ("sha256", 7), ("fingerprint", []), ("tokens", None))
    ],
    *[("eval", EVAL, {f"{BPE}/test.json": bad}, "test.json") for bad in NOT_JSON],
    *[
        ("eval", EVAL, {f"{BPE}/test.bin": bad}, "test.bin")
        for bad in (b"", b"NHTOKENS", b"\0" * 100, lambda old: old[:-1],
                    lambda old: old[:16] + b"\xff" * 8 + old[24:])
    ],
    *[
        ("eval", TRUTH, {f"data/grammar/{TRUTHS}": arrays(**{k: change})}, "test.truth.npz")
        for k, change in [
            ("states", lambda s: s + 10**6), ("states", lambda s: s[:-1]), ("klass", lambda t: t + 99),
            ("states", lambda s: s.astype(float) * np.nan), ("after", lambda t: t + 999),
            ("theme", lambda t: t - 9), ("syntax", lambda t: t[:, :1]), ("lexicon", lambda t: -t),
            ("lexicon", lambda t: t[0]), ("info", lambda t: np.array("{}")),
            ("info", lambda t: np.array("[")),
        ]
    ],
    # stores
    *[(program, arguments, {STORE: bad}, STORE) for program, arguments in READERS
      if arguments not in EVALUATED
      for bad in (NOT_A_STORE if program == "eval" else NOT_A_STORE[::11])],  # all of them read it by Store
    *[
        (program, arguments, {STORE: resettled(measure)}, "other settings")
        for measure, (program, arguments) in (
            *((name, ("table", flags)) for name, flags in MEASURES.items() if name != "curve"),
            ("text", ("eval", f"{EVAL} {OUT}")), ("text", ("table", TABLE)), ("search", ("table", SEARCH)),
        )
    ],
    *[
        (program, arguments, {STORE: rows(measure, **{key: value})}, STORE)
        for measure, key, values, readers in (
            ("text", "row", [None], [("report", REPORT), ("table", TABLE)]),
            ("text", "seed", [None, []], [("report", REPORT), ("table", TABLE)]),
            ("text", "ppl_eps", ["low", []], [("report", REPORT), ("eval", f"{EVAL} {OUT}"),
            ("table", TABLE)]),
            ("orders", "ppl", ["x", [7]], [("report", REPORT), ("table", ORDERS)]),
            ("curve", "curve", [7, [7, 7], [{"step": 1}] * 2],
             [("report", REPORT), ("table", MEASURES["curve"])]),
            *(("search", key, values, [("report", REPORT), ("table", SEARCH), ("table", TUNED)])
              for key, values in {
                  "row": [7, None], "trial": ["0", True, None], "nll": ["low", None],
                  "diverged": ["no", None],
                  "point": [7, [], {"learning_rate": "x"}], "vocab_size": [None, "x"], "training": [None],
              }.items()),
        )
        for value in values for program, arguments in readers
    ],
    ("report", REPORT, {STORE: rows("curve", measure="nosuch")}, "measure = 'nosuch'"),
    ("report", REPORT, {"results/e.samples/run.jsonl": "[1"}, "run.jsonl"),
]
LABEL_STORE = [  # a label store's files: (ending, content, what the line says)
    *[(".json", bad, "store") for bad in NOT_JSON],
    *[(".json", changed(**{k: v}), "store")
      for k, v in (("windows", 1), ("m", 0), ("k", 2.5), ("k", 10**9), ("windows", "x"))],
    (".bin", lambda old: old[:-1], "store"),
    (".bin", lambda old: old[:8] + b"\xfe" * (len(old) - 8), "damaged"),
    (".bin", b"", "store"),
]
# fmt: on


@pytest.mark.parametrize("program, arguments, damage, says", CASES, ids=named(CASES))
def test_bad_input_is_refused_in_one_line(call, here, program, arguments, damage, says):
    refused(call(program, arguments, damage), program, says)
    assert not (here / "new").exists() or program == "wiki"  # which reads its files later


@pytest.mark.parametrize("ending, content, says", LABEL_STORE)
def test_a_damaged_label_store_is_refused(call, whole, ending, content, says):
    (store,) = (whole / BPE).glob("*.labels-*" + ending)
    refused(call("train", LABELS, {f"{BPE}/{store.name}": content}), "train", says)


def test_the_commands_that_are_damaged_here_work_when_whole(call):
    commands = [("train", TRAIN), ("train", RESUME), ("train", LABELS), ("sample", SAMPLE), ("eval", TRUTH)]
    commands += [("sample", PROMPTS), ("export", "run new"), ("text", NOVELS)]
    commands += [("wiki", "--tokenizer=bpe270 --out=new --source=text")]
    check_all(call, [*commands, *(reader for reader in READERS if reader[1] is not TUNED)])
    with pytest.raises(Trains):
        call("table", TUNED)


@pytest.mark.parametrize(
    "change", [rows(definition=7), rows("curve", measure="nosuch")], ids=["other", "unknown"]
)
@pytest.mark.parametrize("program, arguments", [r for r in READERS if r[1] not in (TUNED, REPORT)], ids=str)
def test_rows_of_other_definitions_are_left_out_and_kept(call, here, change, program, arguments):
    with suppress(Trains):
        assert call(program, arguments, {STORE: change}).code == 0
    lines = unfolded([json.loads(line) for line in (here / STORE).read_text().splitlines()])
    assert len(lines) >= 9 and any(line["definition"] == 7 or line["measure"] == "nosuch" for line in lines)


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


def test_a_prompt_that_is_not_utf8(whole):
    assert b"not UTF-8" in process("sample.py", str(whole / "run"), "--prompt", b"\xff").stderr


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
    done = process("-c", COMMAND + code, code=returns, **environment)
    assert (done.stdout, done.stderr) == (shown, b"")


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


# ---- random damage -----------------------------------------------------------------------------------------


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
        ("text", NOVELS, "novels/[arp]*", 4),
        *((program, arguments, STORE, 6) for program, arguments in READERS),
    ],
)
def test_random_damage_is_refused_or_harmless(call, whole, program, arguments, pattern, times):
    check_random_damage(call, whole, program, arguments, pattern, times)
