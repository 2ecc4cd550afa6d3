"""Two processes of torchrun (gloo, on the CPU) against one: what they compute, resume, and build once."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from two_processes import configs, label_store, resumed

import train
from data.tokens import open_tokens
from tests.fixtures import TINY, curve, log, prepare_folder, progress, same_tensors, train_in_process, weights

ROOT = Path(__file__).resolve().parents[1]


def torchrun(*program) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    how = dict(cwd=ROOT, capture_output=True, text=True, timeout=300, env=environment)
    return subprocess.run([*command, *map(str, program)], **how)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory) -> Path:
    """A prepared folder of this module's own: label stores are built in it."""
    return prepare_folder(tmp_path_factory.mktemp("two") / "bpe300", "bpe300")


@pytest.fixture(scope="module")
def out(tokens, trained, tmp_path_factory) -> Path:
    """What two_processes.py leaves and prints (printed.txt). One process begins one of its runs here."""
    out = tmp_path_factory.mktemp("out")
    begun = configs(out, str(trained))["plain-begun-alone"]
    assert train_in_process(begun, tokens) == 0
    done = torchrun(ROOT / "tests" / "two_processes.py", out, tokens, trained)
    assert done.returncode == 0, done.stdout + done.stderr
    (out / "printed.txt").write_text(done.stdout)
    return out


@pytest.fixture(scope="module")
def seen(out) -> list[dict]:
    return [json.loads((out / f"seen-{rank}.json").read_text()) for rank in (0, 1)]


@pytest.fixture(scope="module")
def alone(tokens, tmp_path_factory) -> Path:
    """The run that those named "plain" would be without a break and without a second process."""
    out = tmp_path_factory.mktemp("alone") / "run"
    assert train_in_process(train.TrainConfig(**TINY | dict(out_dir=str(out))), tokens) == 0
    return out


def assert_same_but_for_rounding(run: Path, other: Path) -> None:
    """Sums over two processes are rounded otherwise than those of one, and Adam divides small gradients by
    themselves, so a few weights move by more than the rounding."""
    assert len(curve(run)) == len(curve(other)) == 6
    assert curve(run) == pytest.approx(curve(other), abs=1e-4)
    assert curve(run, "val_nll")[-1] == pytest.approx(curve(other, "val_nll")[-1], abs=1e-4)
    assert [progress(run)[key] for key in ("step", "tokens")] == [6, 6 * 8 * 16]
    a, b = weights(run), weights(other)
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=0, atol=1e-3)
        assert (a[name] - b[name]).abs().mean() < 1e-5


def alone_as(name: str, out: Path, tokens: Path, teacher: Path) -> Path:
    """The run `name` of two_processes.py once more, by one process and without micro-batches."""
    config = configs(out / "one", str(teacher))[name]
    config.micro_batch = 0
    assert train_in_process(config, tokens) == 0
    return Path(config.out_dir)


def test_two_processes_train_as_one(out, tokens, trained):
    """With micro-batches and drawn weights: sums are divided once, by the global count."""
    alone = alone_as("float32", out, tokens, trained)
    assert_same_but_for_rounding(out / "float32", alone)
    # a part of the validation split, which is the same for all, and at the end the whole
    assert curve(alone, "val_windows") == curve(out / "float32", "val_windows") == [3]
    assert curve(alone, "val_nll") == pytest.approx(curve(out / "float32", "val_nll"), abs=1e-4)


def test_two_processes_train_as_one_in_float16(out, tokens, trained):
    """They agree on the loss scale, too: a gradient that overflows in one of them skips the step in both."""
    one = curve(alone_as("float16", out, tokens, trained))
    assert len(one) == 6 and one == pytest.approx(curve(out / "float16"), abs=1e-3)


def test_only_one_process_prints_and_logs(out):
    printed = (out / "printed.txt").read_text()
    assert printed.count("step 6/6") == 5  # one line for each run that gets there
    assert [entry["step"] for entry in log(out / "noisy") if "loss" in entry] == [1, 2, 3, 4, 5, 6]


def test_process_0_chooses_the_dtype_for_all(seen):
    """Once it alone sits on a CPU with bfloat16 instructions, once the other one alone."""
    assert [s["dtypes"] for s in seen] == [["bfloat16", "float32"]] * 2


def test_a_run_resumed_by_as_many_processes_is_the_unbroken_run(out, seen):
    """Bit for bit: weights, moments, losses. It has dropout, drawn weights and labels of a store."""
    assert all(set(s["codes"].values()) == {0} for s in seen)
    whole, broken = out / "noisy", out / "noisy-broken"
    assert same_tensors(weights(whole), weights(broken))
    a, b = (torch.load(run / "last" / "optimizer.pt", weights_only=True) for run in (whole, broken))
    assert same_tensors(a["state"], b["state"])
    assert curve(whole) == curve(broken) and len(curve(whole)) == 6
    assert curve(whole, "val_nll")[-1] == curve(broken, "val_nll")[-1]
    assert progress(whole)["tokens"] == progress(broken)["tokens"] == 6 * 8 * 16


def test_a_run_of_two_processes_is_resumed_by_one(out, alone, tokens, trained):
    config = configs(out, str(trained))["plain-broken"]
    assert len(curve(out / "plain-broken")) == 3
    assert train_in_process(resumed(config), tokens) == 0
    assert_same_but_for_rounding(out / "plain-broken", alone)


def test_a_run_of_one_process_is_resumed_by_two(out, alone):
    assert_same_but_for_rounding(out / "plain-begun-alone", alone)


def test_two_processes_build_one_label_store(out, seen, tokens, trained, tmp_path):
    """One computes every window once, the other waits and computes none; one process makes the same bytes."""
    folder = prepare_folder(tmp_path / "bpe300", "bpe300")
    built, alone = (label_store(place, str(trained)) for place in (tokens, folder))
    assert (built / "labels.bin").read_bytes() == (alone / "labels.bin").read_bytes()
    computed = sorted((s["computed"] for s in seen), key=len)
    windows = (len(open_tokens(folder / "train.bin").ids) - 1) // TINY["block_size"]
    assert computed == [[], list(range(0, windows, 16))]
