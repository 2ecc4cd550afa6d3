"""Each script of bench/ runs to its end at a tiny size and writes what it should. Nothing here is timed."""

import argparse
import importlib
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench import gpu, timing, training
from data.open import load_tokenizer
from data.tokens import open_tokens
from evaluate.store import Store
from tests.fixtures import synthetic_text

BENCH = Path(timing.__file__).parent
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


HEADS = "--rows=16 --dim=8 --vocab 70 --rounds=1 --ways chunked products --heads softmax"


@pytest.mark.parametrize(
    "script, args, programs, keys",
    [
        pytest.param("heads", f"{HEADS} --dtypes float32", None, {"dtype", "peak_mb", "cpu_seconds"}),
        pytest.param(
            "training",
            "--size=tiny --windows=16 --rounds=1 --rows",
            ["baseline"],
            {"tokens_per_s", "losses", "peak_mb"},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "sampling",
            "--size=tiny --batches 2 --tokens=5 --rounds=1 --dtypes=float32",
            ["ours, float32", "transformers, float32"],
            {"tokens_per_s", "batch"},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_script(bench, token_folder, script, args, programs, keys):
    data = ["--data", token_folder] if script == "training" else []
    results = bench(script, *data, *args.split())["results"]
    assert all(r.keys() >= {"seconds", *keys} for r in results)
    if programs:
        assert [r["program"] for r in results] == programs
    else:  # products are shown beside softmax
        ways = [("softmax", "chunked"), ("softmax", "products")]
        assert [(r["head"], r["way"]) for r in results] == ways


def test_no_place_of_this_machine_is_written():
    values = ["--out", "bench/a.json", 3, "/home/me/a.json", "--out=/home/me/a.json", Path("/home/me/x")]
    written = ["--out", "bench/a.json", 3, "a.json", "--out=a.json", "x"]
    assert [timing.without_places(value) for value in values] == written


def test_random_tokens_need_no_corpus(tmp_path):
    folder = training.random_part(3, 8, tmp_path)
    tokens = open_tokens(folder / "train.bin")
    assert len(tokens.ids) == 3 * 8 + 1
    assert tokens.info["vocab_size"] == load_tokenizer(folder).vocab_size == 50257


# ---- bench/gpu.py


@pytest.fixture
def lease(tmp_path):
    """lease(MINUTES): of a run of bench/gpu.py whose results go to tmp_path."""

    def make(minutes: float) -> gpu.Lease:
        args = argparse.Namespace(
            size="124M", out=tmp_path, minutes=minutes, parts=gpu.PARTS, flags="", nanogpt=None, before=None
        )
        return gpu.Lease(args, {"gpu": None})

    return make


def part(name: str, code: str, limit: int = 30) -> gpu.Part:
    return gpu.Part("tests", name, limit, ["-c", code])


def exit_codes(out: Path) -> dict[str, int]:
    parts = json.loads((out / "summary.json").read_text())["parts"]
    return {name: p["exit_code"] for name, p in parts.items()}


def test_gpu_parts_do_not_stop_each_other_and_are_not_run_again(lease, tmp_path):
    begun = tmp_path / "begun"
    parts = [
        part("fails", "raise SystemExit(3)"),
        part("well", f"open({str(begun)!r}, 'a').write('.')"),
        part("too long", "raise SystemExit(4)", limit=600),
        part("hangs", "import time; time.sleep(60)", limit=1),
    ]
    for _ in range(2):
        some = lease(1)
        for each in parts:
            some.run(each)
    assert exit_codes(tmp_path) == {"fails": 3, "well": 0, "hangs": 124}
    assert begun.read_text() == "." and some.failed


def test_gpu_rows_share_the_recipe_of_the_best_trial(lease):
    some = lease(1)
    assert some.recipe() is None and {p.group for p in some.plan()} == {*gpu.PARTS} - {"124M"}
    for name, nll in zip(gpu.RECIPES, (4.0, 3.0, 5.0)):
        some.parts[name] = {"exit_code": 0, "val_nll": nll}
    rows = [p for p in some.plan() if p.group == "124M"]
    assert len(rows) == 9 and all(gpu.RECIPES["muon"] in p.command[3] for p in rows)
    assert rows[2].command[2] == "--rows=['bayes_gpt']"  # for no row before it has ended well
    some.parts["124M baseline"] = {"exit_code": 0}
    rows = [p for p in some.plan() if p.group == "124M"]
    assert [p.name for p in rows[:3]] == ["124M baseline", "124M baseline_paper", "124M smooth_gpt_10"]
    assert rows[2].command[2] == "--rows=['baseline', 'smooth_gpt_10']"


@pytest.mark.slow
def test_gpu_on_a_cpu(tmp_path):
    """The whole list, on a text of made-up words."""
    source, out = tmp_path / "gpu-dry-run", tmp_path / "out"
    for seed, split in enumerate(("train", "validation", "test")):
        (source / split).mkdir(parents=True)
        (source / split / "text.txt").write_text(synthetic_text(400, seed))
    command = [sys.executable, BENCH / "gpu.py", "--size=tiny", "--minutes=60", "--out", out]
    prepared = REPO / "data/text/bpe550-gpu-dry-run"
    try:
        done = subprocess.run([*command, f"--flags=--source={source} --tokenizer=bpe550"])
    finally:
        shutil.rmtree(prepared, ignore_errors=True)
    codes = exit_codes(out)
    assert str(tmp_path) not in (out / "summary.json").read_text()
    assert done.returncode == 0 and set(codes.values()) == {0}, codes
    for name, rows in (("heads_124M", 9), ("heads_124M_paper", 9), ("sig_gpt_12M", 6)):
        measured = [row for row in Store(out / f"{name}.jsonl").rows("text") if not row.get("reference")]
        assert len(measured) == rows and all(math.isfinite(row["self_bleu"]) for row in measured)
    assert {path.stem for path in out.glob("*.json")} == {"summary", "training", "heads", "sampling"}
