"""Each script of bench/ runs to its end at a tiny size and writes what it should. Nothing here is timed."""

import importlib
import json
import sys
from pathlib import Path

import pytest

from bench import timing, training
from data.open import load_tokenizer
from data.tokens import open_tokens

REPO = Path(timing.__file__).parents[1]


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


HEADS = "--rows=16 --dim=8 --vocab 70 --rounds=1 --ways chunked products --heads softmax --dtypes float32"
TINY = "--size=tiny --rounds=1"


def test_heads(bench):
    """Products are shown beside softmax."""
    results = bench("heads", *HEADS.split())["results"]
    assert all(r.keys() >= {"seconds", "dtype", "peak_mb", "cpu_seconds"} for r in results)
    assert [(r["head"], r["way"]) for r in results] == [("softmax", "chunked"), ("softmax", "products")]


@pytest.mark.slow
def test_training_and_sampling(bench, token_folder):
    trained = bench("training", "--data", token_folder, *f"{TINY} --rows".split())["results"]
    assert all(r.keys() >= {"seconds", "tokens_per_s", "losses", "peak_mb"} for r in trained)
    sampled = bench("sampling", *f"{TINY} --batches 2 --tokens=5".split())["results"]
    assert all(r.keys() >= {"seconds", "tokens_per_s", "batch"} for r in sampled)
    programs = [f"{name}, {dtype}" for name in ("ours", "transformers") for dtype in timing.dtypes()]
    assert [r["program"] for r in trained + sampled] == ["baseline", *programs]


def test_no_place_of_this_machine_is_written():
    values = ["--out", "bench/a.json", 3, "/home/me/a.json", "--out=/home/me/a.json", Path("/home/me/x")]
    written = ["--out", "bench/a.json", 3, "a.json", "--out=a.json", "x"]
    assert [timing.without_places(value) for value in values] == written


def test_random_tokens_need_no_corpus(tmp_path):
    folder = training.make_part(Path("random"), 3, 8, tmp_path)
    tokens = open_tokens(folder / "train.bin")
    assert len(tokens.ids) == 3 * 8 + 1
    assert tokens.info["vocab_size"] == load_tokenizer(folder).vocab_size == 50257
