"""Each script of bench/ runs to its end at a tiny size and writes what it should. Nothing here is timed."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench import common, report, steady, training
from data.prepared import load_tokenizer
from data.tokens import open_tokens
from runtime import device

BENCH = Path(common.__file__).parent
REPO = BENCH.parent


def run(script: str, out: Path, *args: str | Path) -> tuple[dict, str]:
    """The JSON that bench/SCRIPT wrote, and what it said."""
    done = subprocess.run(
        [sys.executable, BENCH / script, *args, "--out", out],
        capture_output=True,
        text=True,
        cwd=out.parent,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    assert report["command"].startswith(f"python bench/{script} ")
    assert report["machine"].keys() >= {"cpu", "capabilities", "environment", "cores", "threads", "torch"}
    assert str(out.parent) not in out.read_text() and str(REPO) not in out.read_text()
    return report, done.stderr


def test_heads(tmp_path):
    report, _ = run(
        "heads.py",
        tmp_path / "heads.json",
        "--rows=16",
        "--dim=8",
        "--vocab=70",
        "--repeats=1",
        "--heads",
        "sigmoid",
        "--dtypes",
        "float32",
    )
    assert [report[key] for key in ("rows", "dim", "vocab", "repeats")] == [16, 8, 70, 1]
    assert [(r["head"], r["way"]) for r in report["results"]] == [
        ("sigmoid", "materialised"),
        ("sigmoid", "chunked"),
    ]
    assert all(r.keys() >= {"dtype", "seconds", "peak_mb"} for r in report["results"])


@pytest.mark.slow
def test_training(token_folder, tmp_path):
    report, said = run(
        "training.py",
        tmp_path / "training.json",
        "--data",
        token_folder,
        "--size=tiny",
        "--windows=16",
        "--rounds=1",
        "--what",
    )
    assert "skipped: nanoGPT" in said
    assert [r["program"] for r in report["results"]] == ["baseline"]
    assert report["results"][0].keys() >= {"seconds", "tokens_per_s", "losses", "peak_mb"}


def test_metrics(tmp_path):
    report, _ = run(
        "metrics.py",
        tmp_path / "metrics.json",
        "--texts",
        "8",
        "12",
        "--words=20",
        "--rounds=1",
        "--set=5",
        "--some=2",
    )
    ours, libraries = report["results"][:2], report["results"][2:]
    assert [(r["program"], r["texts"]) for r in ours] == [("metrics.self_bleu_sacre", n) for n in (8, 12)]
    assert [(r["program"], r["equal"], r["set"], r["scored"], r["others"]) for r in libraries] == [
        ("sacrebleu", True, 5, 2, 7)
    ]


@pytest.mark.skipif(
    "TIKTOKEN_CACHE_DIR" not in os.environ,
    reason="bench/prepare.py needs tiktoken's gpt2 files: set TIKTOKEN_CACHE_DIR",
)
@pytest.mark.slow
def test_prepare(tmp_path):
    text = tmp_path / "some.txt"
    text.write_bytes("A line of text, naïve.\n\n = Title = \nthe last one\n".encode())
    report, _ = run(
        "prepare.py", tmp_path / "prepare.json", "--text", text, "--repeat=2", "--memory=2", "--rounds=1"
    )
    assert report["text"] == "some.txt"
    ours, theirs, more = report["results"]
    assert [r["program"] for r in report["results"]] == ["ours", "nanoGPT", "ours, more text"]
    assert ours["sha256_of_ids"] == theirs["sha256_of_ids"]
    assert more["bytes"] == 2 * ours["bytes"] == 4 * len(text.read_bytes())
    assert all(r.keys() >= {"seconds", "mb_per_s", "peak_mb", "tokens"} for r in report["results"])


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


@pytest.mark.slow
def test_sampling(tmp_path):
    how = "--size=tiny", "--batches", "2", "--tokens=5", "--rounds=1", "--dtypes=float32"
    report, said = run("sampling.py", tmp_path / "sampling.json", *how)
    assert "skipped: nanoGPT" in said
    programs = [r["program"] for r in report["results"]]
    assert programs == ["ours, float32", "ours, int8", "transformers, float32"]
    assert all(r["batch"] == 2 and r.keys() >= {"seconds", "tokens_per_s"} for r in report["results"])


def test_int8(trained, token_folder, tmp_path):
    how = "--run", trained, "--data", token_folder, "--windows=3"
    report, _ = run("int8.py", tmp_path / "int8.json", *how)
    scored, sampled = report["results"]
    assert (scored["as"], sampled["as"]) == ("score", "sample")
    assert sampled["tokens"] == 3 * 16 and 0 < sampled["kl"] < 0.01 and 0.5 < sampled["same_top_token"] <= 1
    assert all(0.97 < r["ratio"] < 1.03 and r["ratio"] != 1 for r in (scored, sampled))


def test_no_place_of_this_machine_is_written():
    assert [common.shown(value) for value in ("--out", "bench/a.json", Path("data/x"), 3)] == [
        "--out",
        "bench/a.json",
        "data/x",
        3,
    ]
    assert [
        common.shown(value) for value in ("/home/me/a.json", "--out=/home/me/a.json", Path("/home/me/x"))
    ] == ["a.json", "--out=a.json", "x"]


@pytest.mark.slow
def test_steady(tmp_path):
    args = ("--rows=16", "--dim=8", "--vocab=70", "--runs=2", "--heads", "sigmoid", "--busy", "0", "1")
    measured, _ = run("steady.py", tmp_path / "steady.json", *args)
    results = measured["results"]
    assert [(r["busy"], r["program"]) for r in results] == [
        (n, p) for n in (0, 1) for p in (steady.PLAIN, "sigmoid")
    ]
    assert all(len(r["seconds"]) == 2 and r["worst"] == max(r["seconds"]) >= r["median"] for r in results)
    assert results[3]["worst_of_plain"] == results[3]["worst"] / results[2]["worst"]


def test_busy_processes_end(monkeypatch):
    """With the block, by Ctrl-C in it, and by themselves where their parent is gone."""
    started, popen = [], subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda *args, **more: started.append(popen(*args, **more)) or started[-1]
    )
    with pytest.raises(KeyboardInterrupt):
        with steady.busy(2):
            assert [process.poll() for process in started] == [None, None]
            raise KeyboardInterrupt
    assert len(started) == 2 and all(process.returncode for process in started)
    assert popen([sys.executable, "-c", steady.SPIN, "0"]).wait(60) == 0


def test_random_tokens_need_no_corpus(tmp_path):
    folder = training.random_part(3, 8, tmp_path)
    tokens = open_tokens(folder / "train.bin")
    assert (
        len(tokens.ids) == 3 * 8 + 1
        and tokens.info["vocab_size"] == load_tokenizer(folder).vocab_size == 50257
    )


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


@pytest.mark.parametrize("args", ["--device tpu", "--size 30M", "--out", "--what x", "--device cpu"])
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


def test_perfect(tmp_path):
    report, _ = run("perfect.py", tmp_path / "perfect.json", "--texts=2", "--length=12")
    assert report["results"].keys() >= {"product", "step", "permutation"}
    assert set(report["results"]["product"]["speculative"]) == {1}  # independent places: all in one round


@pytest.mark.parametrize("args", [[], ["--sigma_gpt=nosuch"]])
def test_sigma_gpt_says_what_it_needs(args):
    command = [sys.executable, BENCH / "sigma_gpt.py", *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "--sigma_gpt" in done.stderr and "Traceback" not in done.stderr


# ---- the tables of docs/speed.md


def test_each_kind_of_cpu_has_its_columns(tmp_path):
    """Rows meet by their labels; what one kind lacks is empty."""
    heads = json.loads((BENCH / "heads.json").read_text())
    (tmp_path / "heads.json").write_text(json.dumps(heads))
    assert "bf16 CPU" in report.block(tmp_path) and "AVX2" not in report.block(tmp_path)
    (tmp_path / "avx2").mkdir()
    some = [r for r in heads["results"] if r["dtype"] == "float32" and r["head"] == "softmax"]
    heads["results"] = [{**r, "seconds": 2 * r["seconds"]} for r in some]
    (tmp_path / "avx2" / "heads.json").write_text(json.dumps(heads))
    title, _, plain, *rows = report.block(tmp_path).splitlines()
    assert "| float32 s (bf16 CPU) | | MB | bfloat16 s | | MB | float32 s (AVX2, emulated) | | MB |" in title
    seconds, mb = some[0]["seconds"], f"{some[0]['peak_mb']:.0f}"
    assert some[0]["way"] == "plain" and f" | {seconds:.2f} | 1.00x | {mb} | " in plain
    assert plain.endswith(f" | {2 * seconds:.2f} | 1.00x | {mb} |")
    assert rows[-1].startswith("| **gs_softmax_f2** |") and rows[-1].endswith("| | | |")
    heads["rows"] = 7
    (tmp_path / "avx2" / "heads.json").write_text(json.dumps(heads))
    with pytest.raises(ValueError, match="differ in rows"):
        report.block(tmp_path)


def test_steadiness_table(tmp_path):
    r = {
        "busy": 1,
        "program": "softmax",
        "median": 2.0,
        "worst": 3.0,
        "median_of_plain": 0.5,
        "worst_of_plain": 1.25,
    }
    size = {"rows": 2048, "dim": 384, "vocab": 50257, "runs": 20, "dtype": "float32"}
    (tmp_path / "steady.json").write_text(json.dumps({**size, "results": [r]}))
    assert "| softmax, 1 busy beside | 2.00 | 0.50x | 3.00 | 1.25x |\n" in report.block(tmp_path)
