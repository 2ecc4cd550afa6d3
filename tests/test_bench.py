"""Each script of bench/ runs to its end at a tiny size and writes what it should. How long anything takes is not a test's business."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import device
from bench import common

BENCH = Path(common.__file__).parent
REPO = BENCH.parent


def run(script: str, out: Path, *args: str | Path) -> tuple[dict, str]:
    """The JSON that bench/SCRIPT wrote, and what it said."""
    done = subprocess.run([sys.executable, BENCH / script, *args, "--out", out], capture_output=True, text=True, cwd=out.parent, timeout=120)
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    assert report["command"].startswith(f"python bench/{script} ")
    assert report["machine"].keys() >= {"cpu", "capabilities", "environment", "cores", "threads", "torch"}
    assert str(out.parent) not in out.read_text() and str(REPO) not in out.read_text()
    return report, done.stderr


def test_heads(tmp_path):
    report, _ = run("heads.py", tmp_path / "heads.json", "--rows=16", "--dim=8", "--vocab=70", "--repeats=1", "--heads", "sigmoid", "--dtypes", "float32")
    assert [report[key] for key in ("rows", "dim", "vocab", "repeats")] == [16, 8, 70, 1]
    assert [(r["head"], r["way"]) for r in report["results"]] == [("sigmoid", "materialised"), ("sigmoid", "chunked")]
    assert all(r.keys() >= {"dtype", "seconds", "peak_mb"} for r in report["results"])


def test_training(token_folder, tmp_path):
    report, said = run("training.py", tmp_path / "training.json", "--data", token_folder, "--size=tiny", "--windows=16", "--rounds=1", "--what")
    assert "skipped: nanoGPT" in said
    assert [r["program"] for r in report["results"]] == ["baseline"]
    assert report["results"][0].keys() >= {"seconds", "tokens_per_s", "losses", "peak_mb"}


def test_metrics(tmp_path):
    report, _ = run("metrics.py", tmp_path / "metrics.json", "--texts", "8", "12", "--words=20", "--rounds=1", "--set=5", "--some=2")
    ours, libraries = report["results"][:4], report["results"][4:]
    assert [(r["program"], r["texts"]) for r in ours] == [(f"metrics.{name}", n) for n in (8, 12) for name in ("self_bleu", "self_bleu_sacre")]
    assert [(r["program"], r["equal"], r["set"], r["scored"], r["others"]) for r in libraries] == [("nltk", True, 5, 2, 7), ("sacrebleu", True, 5, 2, 7)]


@pytest.mark.skipif("TIKTOKEN_CACHE_DIR" not in os.environ, reason="bench/prepare.py needs tiktoken's gpt2 files: set TIKTOKEN_CACHE_DIR")
def test_prepare(tmp_path):
    text = tmp_path / "some.txt"
    text.write_bytes("A line of text, naïve.\n\n = Title = \nthe last one\n".encode())
    report, _ = run("prepare.py", tmp_path / "prepare.json", "--text", text, "--repeat=2", "--memory=2", "--rounds=1")
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
    assert [common.shown(value) for value in ("--out", "bench/a.json", Path("data/x"), 3)] == ["--out", "bench/a.json", "data/x", 3]
    assert [common.shown(value) for value in ("/home/me/a.json", "--out=/home/me/a.json", Path("/home/me/x"))] == ["a.json", "--out=a.json", "x"]
