"""The whole path through the command line, as a user types it: prepare, train, sample, table."""

import csv
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import eval_diversity
import sample
import train
from evaluate.store import Store
from tests.fixtures import curve, handlers_kept, log, own_text

ROOT = Path(__file__).resolve().parents[1]
SIZE = """config/tiny.py --dataset=text --tokenizer=bpe400 --block_size=32 --n_layer=1
    --n_embd=32 --n_head=2 --batch_size=8 --max_steps=20 --warmup_steps=2 --eval_interval=10
    --log_interval=5 --dtype=float32""".split()


def run(*command, code: int = 0) -> subprocess.CompletedProcess:
    """A process of its own: it takes seconds to import torch, so most tests call main()."""
    done = subprocess.run(
        [sys.executable, *map(str, command)], cwd=ROOT, capture_output=True, encoding="utf-8"
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Iterator[Path]:
    out = tmp_path_factory.mktemp("out")
    labels = [f"--teacher={out}/baseline", "--candidates=5"]
    source = f"--source={own_text(out / 'end-to-end')}"
    with handlers_kept(), pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        assert train.main(["config/baseline.py", *SIZE, source, f"--out_dir={out}/baseline"]) == 0
        assert train.main(["config/bayes_sig_gpt.py", *SIZE, source, f"--out_dir={out}/bayes", *labels]) == 0
    yield out
    shutil.rmtree(ROOT / "data/text/bpe400-end-to-end")


def test_training_learns_and_logs(out):
    for row in ("baseline", "bayes"):
        losses, val = curve(out / row), curve(out / row, "val_nll")
        assert [e["step"] for e in log(out / row) if "loss" in e] == [5, 10, 15, 20]
        assert losses[-1] < losses[0] and len(val) == 2 and val[1] < val[0] < 6.0  # log 400 = 5.99


def test_samples_repeat_by_seed(out, capsys):
    """Also in a process of its own."""
    flags = [str(out / "baseline"), "--prompt", "The class", "--length", "40"]

    def sampled(*more: str) -> str:
        assert sample.main([*flags, *more]) == 0
        return capsys.readouterr().out

    one = run("sample.py", *flags, "--seed", "1").stdout
    assert one.startswith("The class") and one == sampled("--seed", "1") != sampled("--seed", "2")
    greedy = sampled("--temperature", "0")
    assert greedy == sampled("--temperature", "0", "--seed", "9")


def test_table(out, tmp_path, capsys):
    flags = "--split validation --texts 4 --prompt_tokens 8 --new_tokens 24 --words 24 --halves=2".split()
    runs = [str(out / "baseline"), str(out / "bayes")]
    assert eval_diversity.main([*runs, *flags, "--out", str(tmp_path / "t")]) == 0
    shown = capsys.readouterr().out
    rows = {r["name"]: r for r in csv.DictReader((tmp_path / "t.csv").open())}
    assert list(rows) == ["baseline-tiny", "bayes_sig_gpt-tiny", "human", "unigram noise", "loop"]
    assert all(name in shown for name in rows)
    assert 20 < float(rows["baseline-tiny"]["ppl_tok"]) < 400 and rows["human"]["ppl_tok"] == ""
    assert float(rows["loop"]["seq_rep_4"]) > float(rows["human"]["seq_rep_4"])
    stored = Store(tmp_path / "t.jsonl").rows("text")
    assert [row["name"] for row in stored] == list(rows) and stored[0]["settings"]["texts"] == 4
    assert (stored[0]["row"], stored[0]["overlay"]) == ("baseline", "tiny")
    assert len((tmp_path / "t.samples" / "loop.jsonl").read_text().splitlines()) == 4
