"""The whole path through the command line, as a user types it: prepare, train, sample, table."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SIZE = [
    "config/tiny.py",
    "--tokenizer=bpe400",
    "--block_size=32",
    "--n_layer=1",
    "--n_embd=32",
    "--n_head=2",
    "--batch_size=8",
    "--max_steps=20",
    "--warmup_steps=2",
    "--eval_interval=10",
    "--log_interval=5",
    "--dtype=float32",
]


def run(*command, code: int = 0) -> subprocess.CompletedProcess:
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("out")
    run("train.py", "config/baseline.py", *SIZE, f"--out_dir={out}/baseline")
    run(
        "train.py",
        "config/bayes_sig_gpt.py",
        *SIZE,
        f"--out_dir={out}/bayes",
        f"--teacher={out}/baseline",
        "--candidates=5",
    )
    return out


def test_training_learns_and_logs(out):
    for row in ("baseline", "bayes"):
        log = [json.loads(line) for line in (out / row / "log.jsonl").read_text().splitlines()]
        losses, val = [e["loss"] for e in log if "loss" in e], [e["val_nll"] for e in log if "val_nll" in e]
        assert (
            [e["step"] for e in log if "loss" in e] == [5, 10, 15, 20]
            and losses[-1] < losses[0]
            and len(val) == 2
            and val[1] < val[0] < 6.0
        )  # log 400 = 5.99


def test_samples_repeat_by_seed(out):
    command = ["sample.py", out / "baseline", "--prompt", "The class", "--length", "40", "--seed"]
    one = run(*command, 1).stdout
    assert one.startswith("The class") and one == run(*command, 1).stdout != run(*command, 2).stdout
    greedy = run(*command[:-1], "--temperature", "0").stdout
    assert greedy == run(*command[:-1], "--temperature", "0", "--no_cache", "--seed", "9").stdout


def test_uncertainty_and_prompt_files(out, tmp_path):
    (tmp_path / "prompts.txt").write_text("The class\nAn object\n")
    text = run(
        "sample.py",
        out / "bayes",
        "--prompts",
        tmp_path / "prompts.txt",
        "--num_samples",
        "2",
        "--length",
        "3",
        "--uncertainty",
    ).stdout
    assert text.count("--- prompt") == 4 and text.count("epistemic") == 4 and "prompt 2, sample 2" in text


def test_table(out, tmp_path):
    shown = run(
        "eval_diversity.py",
        out / "baseline",
        out / "bayes",
        "--split",
        "validation",
        "--texts",
        "4",
        "--prompt_tokens",
        "8",
        "--new_tokens",
        "24",
        "--words",
        "24",
        "--halves=2",
        "--out",
        tmp_path / "t",
    ).stdout
    rows = {r["name"]: r for r in csv.DictReader((tmp_path / "t.csv").open())}
    assert list(rows) == ["baseline-tiny", "bayes_sig_gpt-tiny", "human", "unigram noise", "loop"] and all(
        name in shown for name in rows
    )
    assert 100 < float(rows["baseline-tiny"]["ppl_tok"]) < 400 and rows["human"]["ppl_tok"] == ""
    assert float(rows["loop"]["seq_rep_4"]) > float(rows["human"]["seq_rep_4"])
    stored = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert [row["name"] for row in stored] == list(rows) and stored[0]["settings"]["texts"] == 4
    assert (stored[0]["row"], stored[0]["overlay"]) == ("baseline", "tiny")
    assert len((tmp_path / "t.samples" / "loop.jsonl").read_text().splitlines()) == 4


@pytest.mark.parametrize(
    "command, says",
    [
        (
            ["train.py", "config/baseline.py", "--learning_rat=1"],
            "unknown key 'learning_rat'; did you mean 'learning_rate'",
        ),
        (
            ["train.py", "config/baseline.py", "--head=sofmax", *SIZE, "--out_dir={tmp}/x"],
            "unknown head 'sofmax'",
        ),
        (["sample.py", "{tmp}/nothing"], "no checkpoint in"),
        (["sample.py", "{out}/baseline", "--prompt", "word " * 50], "shorten it"),
        (["eval_diversity.py", "{out}/baseline", "--new_tokens", "60"], "ask for shorter texts"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(out, tmp_path, command, says):
    done = run(*(c.format(out=out, tmp=tmp_path) for c in command), code=2)
    assert says in done.stderr and done.stderr.count("\n") == 1 and not list(tmp_path.iterdir())
