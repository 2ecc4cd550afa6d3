"""Each script of bench/ runs to its end at a tiny size and writes what it should. Nothing here is timed."""

import importlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench import common, training
from data.prepared import load_tokenizer
from data.tokens import open_tokens
from runtime import device

BENCH = Path(common.__file__).parent
REPO = BENCH.parent


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """bench(SCRIPT, *ARGS): the JSON that it writes."""

    def run(script: str, *args: str | Path) -> dict:
        out = tmp_path / "out.json"
        monkeypatch.setattr(sys, "argv", [f"bench/{script}.py", *map(str, args), "--out", str(out)])
        importlib.import_module(f"bench.{script}").main()
        report = json.loads(out.read_text())
        assert report["command"].startswith(f"python bench/{script}.py ")
        assert report["machine"].keys() >= {"cpu", "capabilities", "environment", "cores", "threads", "torch"}
        assert str(tmp_path) not in out.read_text() and str(REPO) not in out.read_text()
        return report

    return run


def test_heads(bench):
    size = ("--rows=16", "--dim=8", "--vocab", "70", "--rounds=1")
    ways = ("--ways", "chunked", "products")  # products are shown beside softmax
    report = bench("heads", *size, *ways, "--heads", "softmax", "sigmoid", "--dtypes", "float32")
    assert [report[key] for key in ("rows", "dim", "vocab", "rounds")] == [16, 8, [70], 1]
    assert [(r["vocab"], r["head"], r["way"]) for r in report["results"]] == [
        (70, "softmax", "chunked"),
        (70, "softmax", "products"),
        (70, "sigmoid", "chunked"),
    ]
    assert all(r.keys() >= {"dtype", "seconds", "peak_mb"} for r in report["results"])


@pytest.mark.slow
def test_training(bench, token_folder, capsys):
    report = bench("training", "--data", token_folder, "--size=tiny", "--windows=16", "--rounds=1", "--rows")
    assert "skipped: nanoGPT" in capsys.readouterr().err
    assert [r["program"] for r in report["results"]] == ["baseline"]
    assert report["results"][0].keys() >= {"seconds", "tokens_per_s", "losses", "peak_mb"}


@pytest.mark.slow
def test_sampling(bench, capsys):
    report = bench(
        "sampling", "--size=tiny", "--batches", "2", "--tokens=5", "--rounds=1", "--dtypes=float32"
    )
    assert "skipped: nanoGPT" in capsys.readouterr().err
    programs = [r["program"] for r in report["results"]]
    assert programs == ["ours, float32", "transformers, float32"]
    assert all(r["batch"] == 2 and r.keys() >= {"seconds", "tokens_per_s"} for r in report["results"])


def test_a_served_program_times_itself_and_takes_turns(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(REPO)!r})\n"
        "from bench.common import serve\n"
        "class Program:\n"
        "    steps = 0\n"
        "    def step(self): self.steps += 1; print('to stderr')\n"
        "    def report(self): return {'steps': self.steps}\n"
        "serve(Program)\n"
    )
    programs = {"served": common.Served("served", [str(script)]), "called": lambda: None}
    seconds = common.turns(programs, rounds=3, warmup=2)
    assert [len(times) for times in seconds.values()] == [3, 3] and min(seconds["served"]) >= 0
    report = programs["served"].close()
    assert report["steps"] == 5 and report["cpu_seconds"] >= 0


def test_a_machine_is_named_with_what_its_cpu_can_and_what_is_hidden(monkeypatch):
    monkeypatch.setattr(common, "capabilities", lambda *_: {"avx2": True, "avx512_bf16": False, "fma3": True})
    for name in common.HIDING:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    named = common.machine()
    assert named["capabilities"] == ["avx2"]
    assert named["environment"] == {"ONEDNN_MAX_CPU_ISA": "AVX2"}


@pytest.mark.parametrize("bf16, want", [(True, ["float32", "bfloat16"]), (False, ["float32"])])
def test_what_is_emulated_is_not_benched(monkeypatch, bf16, want):
    monkeypatch.setattr(device, "capabilities", lambda *_: {"avx512_bf16": bf16})
    assert common.dtypes() == want


@pytest.mark.parametrize(
    "value, written",
    [
        ("--out", "--out"),
        ("bench/a.json", "bench/a.json"),
        (Path("data/x"), "data/x"),
        (3, 3),
        ("/home/me/a.json", "a.json"),
        ("--out=/home/me/a.json", "--out=a.json"),
        (Path("/home/me/x"), "x"),
    ],
)
def test_no_place_of_this_machine_is_written(value, written):
    assert common.without_places(value) == written


def test_random_tokens_need_no_corpus(tmp_path):
    folder = training.random_part(3, 8, tmp_path)
    tokens = open_tokens(folder / "train.bin")
    assert len(tokens.ids) == 3 * 8 + 1
    assert tokens.info["vocab_size"] == load_tokenizer(folder).vocab_size == 50257


@pytest.mark.parametrize("name", [path.stem for path in (BENCH / "avx2").glob("*.json")])
def test_both_kinds_of_cpu_were_measured_with_the_same_arguments(name):
    """docs/speed.md has them in one table."""
    reports = [json.loads((BENCH / folder / f"{name}.json").read_text()) for folder in ("", "avx2")]
    for key in ("rows", "dim", "vocab", "size", "tokens", "overlay"):
        assert reports[0].get(key) == reports[1].get(key), key


# ---- bench/gpu.sh


def python_that(folder: Path, *cases: str) -> dict[str, str]:
    """Has bench/gpu.sh start another program for Python; it ends at once but for `cases` of its first
    argument.
    """
    stub = folder / "python"
    stub.write_text(
        "\n".join(["#!/bin/sh", 'case "$1" in', f'-) exec "{sys.executable}" "$@" ;;', *cases, "esac"])
    )
    stub.chmod(0o755)
    return {**os.environ, "PY": str(stub), "HOME": "/home/somebody"}


def summary(out: Path) -> dict[str, int]:
    return {
        part["part"]: part["exit_code"] for part in json.loads((out / "summary.json").read_text())["parts"]
    }


def test_gpu_parts_do_not_stop_each_other(tmp_path):
    out = tmp_path / "results"
    env = python_that(tmp_path, 'bench/training.py) echo "in $PWD and $HOME/x"; exit 3 ;;')
    command = [BENCH / "gpu.sh", "--device", "cpu", "--size", "tiny", "--out", out]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and str(out) in done.stdout
    assert summary(out) == {"machine": 0, "torch": 0, "tests": 0, "training": 3, "sampling": 0, "heads": 0}
    assert (out / "training.log").read_text() == "in . and ~/x\n"
    assert (
        str(REPO) not in (out / "summary.json").read_text()
        and str(out) not in (out / "summary.json").read_text()
    )
    assert sorted(path.suffix for path in out.iterdir()) == [".json"] + [".log"] * 6


def test_gpu_some_parts(tmp_path):
    script, out, env = (BENCH / "gpu.sh").read_text(), tmp_path / "results", python_that(tmp_path)
    known = re.search('^known="(.*)"$', script, re.M)[1].split()
    assert set(known) == set(re.findall(r"\bpart ([a-z0-9-]+) \d", script))

    def run(parts: str) -> int:
        command = [BENCH / "gpu.sh", *"--device cpu --size tiny --out".split(), out, "--parts", parts]
        return subprocess.run(command, env=env, capture_output=True, timeout=60).returncode

    assert run("training-1024") == 2 and not list(out.iterdir())  # none at this size
    assert run("heads,torch") == 0 and summary(out) == {"torch": 0, "heads": 0}
    assert run("machine") == 0 and summary(out) == {"torch": 0, "heads": 0, "machine": 0}


def test_gpu_stopped(tmp_path):
    out = tmp_path / "results"
    env = python_that(tmp_path, '-m) echo "$$" > "$(dirname "$0")/pid"; exec sleep 100 ;;')
    command = [BENCH / "gpu.sh", "--device", "cpu", "--size", "tiny", "--out", out]
    script = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not ((tmp_path / "pid").is_file() and (tmp_path / "pid").read_text()):
        assert script.poll() is None
        time.sleep(0.05)
    script.terminate()
    assert script.wait(60) == 130
    assert summary(out) == {"machine": 0, "torch": 0}
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.mark.parametrize(
    "args", ["--device tpu", "--size 30M", "--out", "--what x", "--device cpu", "--parts tests,x"]
)
def test_gpu_refuses(tmp_path, args):
    command = [BENCH / "gpu.sh", *args.split()]
    done = subprocess.run(command, env=python_that(tmp_path), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr.startswith("gpu.sh: ") and len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_gpu_on_a_cpu(tmp_path):
    command = [BENCH / "gpu.sh", "--device", "cpu", "--size", "tiny", "--out", tmp_path / "results"]
    done = subprocess.run(command, env={**os.environ, "PY": sys.executable}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert set(summary(tmp_path / "results").values()) == {0}
    assert {path.stem for path in (tmp_path / "results").glob("*.json")} == {
        "summary",
        "training",
        "sampling",
        "heads",
    }
    for path in (tmp_path / "results").iterdir():
        assert str(REPO) not in path.read_text() and str(tmp_path) not in path.read_text()
