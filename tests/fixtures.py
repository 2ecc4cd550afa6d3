"""What several test files share: a prepared token folder, configurations, trainers, a trained checkpoint."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the models are tiny: threads only get in each other's way
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import contextlib
import io
import json
import math
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import train
import training.text
from common.manifest import write_manifest
from data.open import load_tokenizer
from data.prepare.corpus import Contents, Split, prepare_splits
from data.tokenizers import Tokenizer
from evaluate.metrics import Calibration
from heads import HEADS
from model import LanguageModel, build
from tables import text as text_measure
from tables.store import Store
from tables.views import read_texts, samples_file
from training.checkpoint import save
from training.run import Progress, RunConfig

text_measure.ENOUGH_WORDS = 0  # the tests' texts are of a few words
os.fsync = lambda fd: None  # nothing here need outlive a power cut, and each waits for the disk

# Under nohup SIGHUP is ignored, in the background of a script SIGINT, and programs go on after it: the tests
# are of what they do otherwise
for number, usual in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, usual)

VOCAB = 300
TINY = dict(tokenizer=f"bpe{VOCAB}", block_size=16, n_layer=1, n_head=2, n_embd=32, batch_size=8, max_steps=6)
TINY |= dict(learning_rate=3e-3, min_lr=3e-4, warmup_steps=2, eval_interval=100, log_interval=1)
TINY |= dict(device="cpu", dtype="float32")


def synthetic_text(lines: int, seed: int) -> str:
    """Lines of made-up words with Zipf frequencies: enough to learn something, and for the metrics."""
    rng = np.random.default_rng(seed)
    words = ["".join(np.random.default_rng(w).choice(list("aeiourstlnmk"), 3 + w % 4)) for w in range(80)]
    p = 1 / np.arange(1, 81)
    return "".join(" ".join(rng.choice(words, 9, p=p / p.sum())) + " .\n" for _ in range(lines))


def own_text(folder: Path) -> Path:
    """`folder` with the text of each split, as data/text prepares it."""
    for seed, (split, lines) in enumerate({"train": 400, "validation": 60, "test": 60}.items()):
        (folder / split).mkdir(parents=True)
        (folder / split / "text.txt").write_text(synthetic_text(lines, seed))
    return folder


def prepare_folder(folder: Path, tokenizer: str, seed: int = 0) -> Path:
    splits = {}
    for more, (name, lines) in enumerate({"train": 250, "validation": 30, "test": 60}.items()):
        text = synthetic_text(lines, seed + more)
        splits[name] = Split(lambda text=text: io.StringIO(text, newline="\n"), len(text.encode()))
    return prepare_splits(folder, tokenizer, Contents("synthetic", splits))


@pytest.fixture(scope="session")
def token_folder(tmp_path_factory) -> Path:
    """A prepared folder of a bpe300 and a few thousand tokens. Read only: who writes has another."""
    return prepare_folder(tmp_path_factory.mktemp("corpus") / f"bpe{VOCAB}", f"bpe{VOCAB}")


@contextlib.contextmanager
def handlers_kept() -> Iterator[None]:
    """Restores the handlers of the signals that a training answers."""
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)


def train_in_process(config: train.TrainConfig, folder: Path, main=train.main) -> int:
    """train.main, or another `main`, on `folder`'s tokens; signal handlers as they were."""
    flags = [f"--{k}={v}" for k, v in vars(config).items()]
    with pytest.MonkeyPatch.context() as patch, handlers_kept():
        patch.setattr(training.text, "prepared", lambda *_: folder)
        return main(flags)


def train_on(folder: Path, out: Path, **changes: object) -> Path:
    """Trains a tiny run on `folder`'s tokens, under the name of its folder `out`, which is returned."""
    known = TINY | dict(tokenizer=load_tokenizer(folder).name, name=out.name, out_dir=str(out))
    assert train_in_process(train.TrainConfig(**known | changes), folder) == 0
    return out


def untrained(out: Path, tokenizer: Tokenizer, shake: float = 0.0, **changes: object) -> Path:
    """Saves a run that nobody trained, with the weights of seed 0, shaken; returns `out`."""
    size = dict(vocab_size=tokenizer.vocab_size, block_size=16, n_layer=2, n_head=2, n_embd=32, dropout=0.0)
    words = dict(tokenizer=tokenizer.name, tokenizer_fingerprint=tokenizer.fingerprint)
    config = RunConfig(**dict(name=out.name) | size | words | changes)
    torch.manual_seed(0)
    model = build(vars(config))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p), alpha=shake)
    save(out / "best", model, config, Progress(1), None, tokenizer)
    return out


@pytest.fixture(scope="session")
def trained(token_folder, tmp_path_factory) -> Path:
    """The out folder of a tiny softmax run, 60 steps. Read only."""
    out = tmp_path_factory.mktemp("trained") / "baseline"
    return train_on(token_folder, out, max_steps=60, learning_rate=1e-2, eval_interval=30)


@pytest.fixture
def tiny(tmp_path):
    """tiny(**changes) -> a TrainConfig for the tiny folder, writing to tmp_path/out."""
    known = TINY | dict(name="tiny", out_dir=str(tmp_path / "out"))
    return lambda **changes: train.TrainConfig(**known | changes)


@pytest.fixture
def run(token_folder):
    """run(config) -> exit code of train.main on the tiny folder, in this process."""
    return lambda config, folder=None: train_in_process(config, folder or token_folder)


@pytest.fixture
def trainer(token_folder, monkeypatch):
    """trainer(config) -> a Training on the tiny folder, ready to step."""
    monkeypatch.setattr(training.text, "prepared", lambda *_: token_folder)

    def make(config: train.TrainConfig) -> train.Training:
        made = train.initialise(config, train.Processes("cpu"))
        made.model.train()
        return made

    return make


def random_model(head: str = "softmax", block: int = 12, spread: float = 0.3, **changes) -> LanguageModel:
    """A model with opinions on 61 tokens; the noise of Bayesian weights is as large as the weights."""
    torch.manual_seed(0)
    size = dict(vocab_size=61, block_size=block, n_layer=2, n_head=2, n_embd=16, dropout=0.1)
    model = build(size | dict(head=head, head_args={}, bayesian=False, prior_sigma=0.5) | changes).eval()
    with torch.no_grad():
        for k, p in model.named_parameters():
            p.fill_(math.log(0.3)) if k.endswith("log_sigma") else p.add_(spread * torch.randn(p.shape))
    return model


class TrueToken:
    """The labels that a head has without a teacher."""

    def __init__(self, head: str = "softmax"):
        self.head = HEADS[head](VOCAB)

    def targets(self, indices, x, y):
        return self.head.targets(x, y)


def chi_square(counts: np.ndarray, p: np.ndarray) -> float:
    """How many standard deviations the chi-square statistic is above its mean; 0 where one word is certain.

    Words expected less than 5 times are pooled.
    """
    expected = p * counts.sum()
    rare = expected < 5
    counts, expected = (np.append(x[~rare], x[rare].sum()) for x in (counts, expected))
    keep = expected > 0
    statistic, dof = ((counts - expected)[keep] ** 2 / expected[keep]).sum(), keep.sum() - 1
    return (statistic - dof) / math.sqrt(2 * max(1, dof))


def rows(out: Path) -> dict[str, dict]:
    """The rows of a table of texts, by name."""
    return {r["name"]: r for r in Store(out.with_name(out.name + ".jsonl")).rows("text")}


def samples(out: Path, name: str) -> list[str]:
    """The texts of a row."""
    return read_texts(samples_file(out, name))


def scale(folder: Path, factor: float) -> None:
    """Another model in a checkpoint: the weights times `factor`."""
    weights = folder / "model.safetensors"
    save_file({k: v * factor for k, v in load_file(weights).items()}, weights)
    seal(folder)


def seal(folder: Path) -> None:
    """Lets the changed files of a checkpoint be what was saved."""
    write_manifest(folder, {}, {file.name for file in folder.iterdir()} - {"manifest.json"})


def over(code: int) -> SimpleNamespace:
    """A process that has ended."""
    return SimpleNamespace(returncode=code, poll=lambda: code, terminate=lambda: None)


def weights(out: str | Path, which: str = "last") -> dict[str, torch.Tensor]:
    """A run's stored weights."""
    return load_file(Path(out) / which / "model.safetensors")


def progress(out: str | Path, which: str = "last") -> dict:
    """A run's progress.json."""
    return json.loads((Path(out) / which / "progress.json").read_text())


def log(out: str | Path) -> list[dict]:
    return [json.loads(line) for line in (Path(out) / "log.jsonl").read_text().splitlines()]


def curve(out: str | Path, key: str = "loss") -> list[float]:
    """The values of a key in a run's log."""
    return [entry[key] for entry in log(out) if key in entry]


def same_tensors(a: dict, b: dict) -> bool:
    """Bitwise equality of two dicts of tensors (or nested ones, such as an optimizer's state)."""

    def same(x, y) -> bool:
        if isinstance(x, dict):
            return same_tensors(x, y)
        return torch.equal(x, y) if torch.is_tensor(x) else x == y

    return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)


def ece(confidence, correct) -> float:
    """`Calibration` in one call."""
    calibration = Calibration()
    calibration.add(confidence, correct)
    return calibration.ece()
