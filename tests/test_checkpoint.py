"""Checkpoints: what goes in comes out, bit for bit; a folder of the final name is whole, whatever happens."""

import errno
import math
import pathlib
import resource
import shutil
from dataclasses import asdict, replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from common.errors import UserError
from data.open import tokenizer_of
from data.prepare.bpe import train_bpe
from data.tokenizers import BPETokenizer
from heads import Targets
from model import build
from tests.fixtures import same_tensors, seal
from training import run as training_run
from training.checkpoint import find_checkpoint, in_use, save, weights_digest
from training.run import Degenerate, Progress, Run, RunConfig, load_model

CONFIG = dict(vocab_size=264, block_size=9, n_layer=2, n_head=2, n_embd=18, dropout=0.1)
CONFIG |= dict(head="sigmoid", head_args={"pos_weight": 3.0}, bayesian=False, prior_sigma=0.1)
CONFIG |= dict(name="tiny", tokenizer="bpe264", tokenizer_fingerprint="", learning_rate=6e-4)
PROGRESS = Progress(7, 7 * 9, best={"nll": math.inf})
LATER = Progress(8, 8 * 9)
both = pytest.mark.parametrize("bayesian", [False, True], ids=["point", "bayesian"])


def new_model(seed: int = 0, **changes):
    torch.manual_seed(seed)
    return build(CONFIG | changes)


def stepped(model, optimizer=None, seed: int = 0):
    """One AdamW step of `model`, so that the optimizer has a state."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-2)
    x = torch.randint(264, (2, 9), generator=torch.Generator().manual_seed(seed))
    model.eval()
    loss, _ = model.head.loss(model.trunk(x), Targets.single(x), torch.Generator().manual_seed(seed))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


@pytest.fixture(scope="module")
def tokenizer() -> BPETokenizer:
    return train_bpe(["the history of the other one there in the north"] * 3, 264)


@pytest.fixture
def last(tmp_path, tokenizer):
    """A whole checkpoint tmp_path/out/last, of step 7."""
    model, path = new_model(), tmp_path / "out" / "last"
    config = CONFIG | {"tokenizer_fingerprint": tokenizer.fingerprint}
    save(path, model, RunConfig(**config), PROGRESS, stepped(model).state_dict(), tokenizer)
    return path


def names(folder) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


GAINS = [("softmax", dict(gain=4.0)), ("sigmoid", dict(gain=2.0, learn_gain=True))]


@torch.no_grad()
@both
@pytest.mark.parametrize("head, gain", GAINS)
def test_round_trip(tmp_path, head, gain, bayesian):
    config = CONFIG | dict(head=head, head_args={}, bayesian=bayesian, **gain)
    model = build(config)
    save(tmp_path / "out" / "best", model, RunConfig(**config), PROGRESS)
    back, run = load_model(tmp_path / "out")
    assert run.config == RunConfig(**config) and run.record == asdict(run.config)
    assert run.progress == PROGRESS and run.path == tmp_path / "out" / "best"
    assert same_tensors(dict(back.named_parameters()), dict(model.named_parameters())) and not back.training
    assert back.head.projection.weight is back.trunk.wte.weight  # still tied
    assert float(back.head.gain) == pytest.approx(gain["gain"])
    x = torch.arange(18).view(2, 9)
    score = lambda m: m.head.log_probs(m.trunk(x).flatten(0, 1), m.head.draws(2, 0))
    assert torch.equal(score(back), score(model.eval()))


def test_find(tmp_path, last):
    out = last.parent
    for at in (out, str(last), last):  # no best: the last
        assert find_checkpoint(at) == find_checkpoint(at, "last") == last
    shutil.copytree(last, out / "best")
    assert find_checkpoint(out) == find_checkpoint(out, "best") == out / "best"
    assert find_checkpoint(out, "last") == last
    (out / "best").rename(out / "best.old")  # killed between the two renames
    assert find_checkpoint(out) == out / "best.old" and find_checkpoint(out, "last") == last
    for wrong in (tmp_path, tmp_path / "none", out / "best.new"):
        with pytest.raises(FileNotFoundError):
            find_checkpoint(wrong)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_numbers_are_refused(last, value):
    stored = load_file(last / "model.safetensors")
    stored["trunk.wpe.weight"][3, 1] = value
    save_file(stored, last / "model.safetensors")
    seal(last)
    with pytest.raises(Degenerate, match="trunk.wpe.weight"):
        load_model(last)


def test_another_tokenizer_is_refused(last):
    train_bpe(["a quite different text, as long as it must be for the merges"] * 3, 264).save(last)
    seal(last)
    with pytest.raises(ValueError, match="tokenizer.json"):
        tokenizer_of(Run(last))


def test_a_checkpoint_of_an_earlier_version_has_no_manifest(last):
    (last / "manifest.json").unlink()
    assert Run(last).weights() and Run(last).optimizer() and Run(last).weights_sha256 == weights_digest(last)


def test_a_save_while_a_run_is_opened_mixes_nothing(last, monkeypatch):
    """Its step, its configuration and its weights are of one checkpoint."""
    real, saves = training_run.read_json, [LATER]

    def saving(*args, **kwargs):
        content = real(*args, **kwargs)
        if saves:
            save(last, new_model(1), RunConfig(**CONFIG), saves.pop())
        return content

    monkeypatch.setattr(training_run, "read_json", saving)
    run = Run(last)
    assert run.progress.step == 8 and run.weights_sha256 == weights_digest(last)
    assert same_tensors(run.weights(), new_model(1).state())
    save(last, new_model(2), RunConfig(**CONFIG), replace(LATER, step=9))
    with pytest.raises(UserError, match="model.safetensors"):
        run.weights()


@pytest.mark.parametrize("where", ["training.checkpoint.save_file", "os.fsync", "json.dumps"])
@pytest.mark.parametrize("first", [False, True], ids=["over an old one", "the first"])
def test_a_full_disk_leaves_the_old_checkpoint(tmp_path, monkeypatch, tokenizer, where, first):
    path, old = tmp_path / "out" / "last", new_model(0)
    state = stepped(old).state_dict()
    if not first:
        save(path, old, RunConfig(**CONFIG), PROGRESS, state, tokenizer)
    content = {p.name: p.read_bytes() for p in path.glob("*")}

    def fail(*args, **_):
        if where.endswith("save_file"):  # (tensors, file)
            args[1].write_bytes(b"half of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(where, fail)
    with pytest.raises(OSError):
        save(path, new_model(1), RunConfig(**CONFIG), LATER, state, tokenizer)
    assert names(tmp_path / "out") == ([] if first else ["last"])
    assert {p.name: p.read_bytes() for p in path.glob("*")} == content
    monkeypatch.undo()
    # and with space again, it works
    save(path, new_model(1), RunConfig(**CONFIG), LATER, state, tokenizer)
    assert Run(path).progress.step == 8 and names(tmp_path / "out") == ["last"]


@pytest.mark.parametrize("limit", [20_000, 80_000], ids=["of the weights", "of the optimizer's state"])
def test_a_real_full_disk_is_one_plain_line(tmp_path, limit):
    """As far as a limit on the size of files is one: torch and safetensors have words of their own for it."""
    model = new_model()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as e:
            save(tmp_path / "last", model, RunConfig(**CONFIG), PROGRESS, stepped(model).state_dict())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "inline_container" not in str(e.value) and names(tmp_path) == []


class Killed(BaseException):
    """Stands for SIGKILL."""


def kill_before(monkeypatch, nth: int) -> None:
    """Raises Killed in place of the nth of save's removals and renames."""
    left = [nth]

    def counted(do):
        def step(*args, **kwargs):
            if not left[0]:
                raise Killed
            left[0] -= 1
            return do(*args, **kwargs)

        return step

    for owner, name in ((shutil, "rmtree"), (pathlib.Path, "rename")):
        monkeypatch.setattr(owner, name, counted(getattr(owner, name)))


@pytest.mark.parametrize("before, nth", [("whole", n) for n in range(5)] + [("killed", n) for n in range(3)])
def test_killed_at_any_moment_a_checkpoint_remains(last, monkeypatch, before, nth):
    """`before`: there was a whole checkpoint, or an earlier save had been killed between its renames."""
    (last.parent / f".log.jsonl.{'0' * 8}.tmp").touch()
    if before == "killed":
        shutil.copytree(last, last.with_name("last.new"))
        last.rename(last.with_name("last.old"))
    with monkeypatch.context() as patch:
        kill_before(patch, nth)
        with pytest.raises(Killed):
            save(last, new_model(1), RunConfig(**CONFIG), LATER)
    _, run = load_model(last.parent, "last")
    assert same_tensors(run.weights(), new_model(1).state()) == (run.progress.step == 8)
    save(last, new_model(2), RunConfig(**CONFIG), replace(LATER, step=9))
    assert names(last.parent) == ["last"] and Run(last).progress.step == 9


def test_a_folder_in_use_is_refused(tmp_path):
    out = tmp_path / "runs" / "a"
    with in_use(out):
        with pytest.raises(UserError, match="in use"), in_use(out):
            pytest.fail("held twice")
        assert out.is_dir()  # the one refused leaves the other's folder alone
        (out / "log.jsonl").touch()
    with in_use(out):  # free again
        pass
    assert (out / "log.jsonl").is_file()
    with pytest.raises(ZeroDivisionError), in_use(tmp_path / "b"):
        1 / 0
    assert names(tmp_path) == ["runs"]  # who wrote nothing leaves nothing
