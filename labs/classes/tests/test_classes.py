"""Image classifiers: the files of the sets, the network from its line, training with any head, what is
measured, and the table."""

import functools
import gzip
import json
import math
import os
import shutil
import signal
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import table
import train
from config.defaults import TrainConfig
from evaluation.settings import TableConfig
from heads import HEADS, make_head
from labs.classes import sets
from labs.classes.judge import PUBLISHED, Judged, judge
from labs.classes.measure import summary_of
from labs.classes.sets import KINDS, Images, open_images
from labs.classes.task import ClassesTask
from labs.cnn.trunk import CNN, items, width
from measures.find import find_measure
from measures.jobs import Run
from measures.store import Store
from model import GPTConfig, LanguageModel
from runtime import checkpoint
from runtime.configurator import configure, read_config
from runtime.errors import UserError
from runtime.logs import entries
from training.evaluator import Interrupted

ROOT = Path(__file__).resolve().parents[3]
CONFIGS = ("digits", "mnist", "mnist_brief", "cifar10", "cifar100")
LAYERS = "Conv[3x3,4] BN ReLU MaxPool[4x4,4] DO FC[16] ReLU"


def network(layers: str, shape: tuple[int, int, int], he: bool = False) -> CNN:
    """The trunk of such images, ten classes."""
    return CNN(GPTConfig(10, 1, 1, 1, width(layers, shape)), layers, list(shape), he)


# ---- made images: a bright square, whose place is the class


def made(count: int, shape: tuple[int, int, int], classes: int, seed: int) -> Images:
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=count)
    pixels = rng.integers(0, 60, (count, *shape), dtype=np.uint8)
    step = shape[2] // 5
    for image, label in zip(pixels, labels % 10):
        y, x = label // 5 * 2 * step, label % 5 * step
        image[:, y : y + step, x : x + step] = 250
    return Images(pixels, labels.astype(np.int64))


def idx(array: np.ndarray) -> bytes:
    sizes = b"".join(n.to_bytes(4, "big") for n in array.shape)
    return bytes((0, 0, 8, array.ndim)) + sizes + array.astype(np.uint8).tobytes()


def write_mnist(folder: Path, train: Images, test: Images, zipped: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for prefix, images in (("train", train), ("t10k", test)):
        for name, array in (("images-idx3", images.pixels[:, 0]), ("labels-idx1", images.labels)):
            content = idx(array)
            path = folder / f"{prefix}-{name}-ubyte{'.gz' * zipped}"
            path.write_bytes(gzip.compress(content) if zipped else content)


def cifar_bytes(images: Images, coarse: bool = False) -> bytes:
    columns = [images.labels[:, None], images.pixels.reshape(len(images), -1)]
    if coarse:
        columns.insert(0, images.labels[:, None] // 5)
    return np.concatenate(columns, 1).astype(np.uint8).tobytes()


@pytest.fixture(scope="session")
def source(tmp_path_factory) -> Path:
    """A folder of a small set of MNIST's form. Read only."""
    folder = tmp_path_factory.mktemp("mnist")
    shape = KINDS["mnist"].shape
    write_mnist(folder, made(300, shape, 10, 0), made(100, shape, 10, 1), zipped=True)
    return folder


@pytest.fixture
def flags(source, tmp_path):
    """flags(**changes) -> a command line of a small run."""

    def make(layers: str = LAYERS, **changes: object) -> list[str]:
        values = dict(source=source, batch_size=30, max_steps=18, eval_interval=9, device="cpu")
        values |= dict(learning_rate=0.01, min_lr=0.01, log_interval=1, name="run", out_dir=tmp_path / "out")
        flags = [f"--{k}={v}" for k, v in (values | changes).items()]
        return ["config/mnist.py", f"--trunk_args.layers={layers}", *flags]

    return make


@pytest.fixture
def run(capsys):
    """run(argv) -> exit code of train.main; signal handlers as they were."""

    def call(argv: list[str]) -> int:
        before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        try:
            return train.main(argv)
        finally:
            for s, handler in before.items():
                signal.signal(s, handler)

    return call


# ---- files


@pytest.mark.parametrize("below", ["", "raw", "MNIST/raw"])
@pytest.mark.parametrize("zipped", [False, True])
def test_idx_files_are_read(tmp_path, below, zipped):
    shape = KINDS["mnist"].shape
    train, test = made(20, shape, 10, 0), made(7, shape, 10, 1)
    write_mnist(tmp_path / below, train, test, zipped)
    found = open_images("mnist", str(tmp_path), validation=0.25)
    assert [len(s) for s in found[1:]] == [15, 5, 7]
    assert np.array_equal(found.test.pixels, test.pixels) and np.array_equal(found.test.labels, test.labels)
    both = {bytes(p) for s in (found.train, found.validation) for p in s.pixels}
    assert both == {bytes(p) for p in train.pixels}
    again = open_images("mnist", str(tmp_path), validation=0.25)
    assert again.sha256 == found.sha256 and np.array_equal(again.validation.labels, found.validation.labels)


@pytest.mark.parametrize("below", ["", "folder"])
@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_in_its_binary_version_is_read(tmp_path, name, below):
    kind = KINDS[name]
    folder = tmp_path / kind.folders[1] if below else tmp_path
    folder.mkdir(exist_ok=True)
    parts = [made(3, kind.shape, kind.classes, seed) for seed in range(5)]
    test = made(4, kind.shape, kind.classes, 9)
    coarse = name == "cifar100"
    if coarse:
        (folder / "train.bin").write_bytes(b"".join(cifar_bytes(p, coarse) for p in parts))
        (folder / "test.bin").write_bytes(cifar_bytes(test, coarse))
    else:
        for i, part in enumerate(parts, 1):
            (folder / f"data_batch_{i}.bin").write_bytes(cifar_bytes(part))
        (folder / "test_batch.bin").write_bytes(cifar_bytes(test))
    train, found = sets.from_folder(name, tmp_path)
    assert np.array_equal(found.pixels, test.pixels) and np.array_equal(found.labels, test.labels)
    assert np.array_equal(train.pixels, np.concatenate([p.pixels for p in parts]))
    assert np.array_equal(train.labels, np.concatenate([p.labels for p in parts]))


def damage(folder: Path, how: str) -> None:
    images, labels = (folder / f"train-{name}-ubyte" for name in ("images-idx3", "labels-idx1"))
    if how == "short":
        images.write_bytes(images.read_bytes()[:-1])
    elif how == "header":
        images.write_bytes(images.read_bytes()[:7])
    elif how == "other":
        images.write_bytes(b"PK" + images.read_bytes()[2:])
    elif how == "gone":
        labels.unlink()
    elif how == "size":
        images.write_bytes(idx(np.zeros((20, 8, 8))))
    elif how == "label":
        labels.write_bytes(idx(np.full(20, 10)))
    elif how == "count":
        labels.write_bytes(idx(np.zeros(19)))
    elif how == "gzip":
        images.with_name(images.name + ".gz").write_bytes(gzip.compress(images.read_bytes())[:-20])
        images.unlink()
    elif how == "none":
        images.write_bytes(idx(np.zeros((0, 28, 28))))
        labels.write_bytes(idx(np.zeros(0)))


@pytest.mark.parametrize(
    "how, says",
    [
        ("short", "images-idx3-ubyte is cut short or damaged: 15,679 bytes, its header says 20 x 28 x 28"),
        ("header", "images-idx3-ubyte is no IDX file of 3 dimensions"),
        ("other", "images-idx3-ubyte is no IDX file of 3 dimensions"),
        ("gone", "train-labels-idx1-ubyte is missing"),
        ("size", "has images of 8 x 8, mnist's are 28 x 28"),
        ("label", "has the label 10: mnist's are 0 to 9"),
        ("count", "has 20 images and 19 labels"),
        ("gzip", "images-idx3-ubyte.gz is cut short or damaged"),
        ("none", "holds no image"),
    ],
)
def test_damaged_files_are_refused(tmp_path, how, says):
    shape = KINDS["mnist"].shape
    write_mnist(tmp_path, made(20, shape, 10, 0), made(7, shape, 10, 1))
    damage(tmp_path, how)
    with pytest.raises((UserError, FileNotFoundError), match=says):
        open_images("mnist", str(tmp_path))


def test_a_cifar_file_that_is_cut_short_is_refused(tmp_path):
    kind = KINDS["cifar100"]
    content = cifar_bytes(made(3, kind.shape, 100, 0), coarse=True)
    (tmp_path / "train.bin").write_bytes(content[:-5])
    with pytest.raises(UserError, match=r"train.bin is cut short or damaged: 9,217 bytes"):
        open_images("cifar100", str(tmp_path))


@pytest.mark.parametrize("name, path", [("cifar10", "cifar-10-batches-py/x"), ("cifar100", "meta")])
def test_pickles_are_not_read(tmp_path, name, path):
    (tmp_path / path).parent.mkdir(exist_ok=True)
    (tmp_path / path).write_bytes(b"cos\nsystem\n(S'echo'\ntR.")
    with pytest.raises(FileNotFoundError, match="its pickles are not read; get the binary version"):
        open_images(name, str(tmp_path))


def test_a_source_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        open_images("mnist", str(tmp_path / "no"))
    with pytest.raises(FileNotFoundError, match="has no train-images-idx3-ubyte"):
        open_images("mnist", str(tmp_path))


def test_the_hub_is_asked_and_nothing_takes_its_place(monkeypatch):
    pictures = {
        split: {"img": list(np.zeros((30, 32, 32, 3), np.uint8)), "label": [1] * 30}
        for split in ("train", "test")
    }
    hub = types.SimpleNamespace(load_dataset=lambda name: pictures)
    monkeypatch.setitem(sys.modules, "datasets", hub)
    assert open_images("cifar10").train.pixels.shape == (27, 3, 32, 32)

    def offline(name: str) -> None:
        raise ConnectionError(f"no way to {name}\nand more")

    hub.load_dataset = offline
    files = 'train-images-idx3-ubyte .* --source=DIR .*--source="mnist vq in=DIR".*config/digits.py'
    with pytest.raises(UserError, match=rf"no way to ylecun/mnist\): get its files, {files}"):
        open_images("mnist")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        UserError, match=r"\(datasets is not installed, .*\[hub\]\"\): get its files, train.bin and"
    ):
        open_images("cifar100")


def test_digits_are_scikit_learns():
    pytest.importorskip("sklearn")
    found = open_images("digits")
    assert [len(s) for s in found[1:]] == [1293, 144, 360] and found.train.pixels.max() == 255


def test_without_scikit_learn_one_line_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(
        UserError,
        match=r"scikit-learn is not installed.*pip install .*\[images\].*--dataset=mnist --source=DIR",
    ):
        open_images("digits")


# ---- the network


def test_a_line_is_the_network_it_says():
    torch.manual_seed(0)
    text = "{Conv[3x3,5] ReLU}x2 MaxPool[2x2,2,same] BN ELU FC[7] Dropout[0.5]"
    net = network(text, (2, 7, 7)).eval()
    convs = [m for m in net.modules() if isinstance(m, nn.Conv2d)]
    (linear,) = (m for m in net.modules() if isinstance(m, nn.Linear))
    pixels = torch.randint(256, (3, 2, 7, 7), dtype=torch.uint8)
    x = pixels / 255
    for c in convs:
        x = F.conv2d(x, c.weight, c.bias, padding=1).relu()
    x = F.max_pool2d(F.pad(x, (0, 1, 0, 1), value=-math.inf), 2) / math.sqrt(1 + 1e-3)
    want = F.linear(F.elu(x).flatten(1), linear.weight, linear.bias)
    assert net.config.n_embd == 7 and net(pixels).shape == (3, 1, 7)
    torch.testing.assert_close(net(pixels)[:, 0], want)


@pytest.mark.parametrize("pooling", ["MaxPool[1x1,2,same]", "MaxPool[2x2,4,same]", "MaxPool[3x3,2,same]"])
def test_the_size_behind_a_pooling_is_the_one_that_it_leaves(pooling):
    assert network(f"{pooling} FC[3]", (1, 5, 4))(torch.zeros(2, 1, 5, 4).byte()).shape == (2, 1, 3)


@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_a_convolution_leaves_the_size_as_it_is():
    net, pixels = network("Conv[2x2,4] Conv[3x1,5]", (2, 5, 6)), torch.randint(256, (3, 2, 5, 6)).byte()
    x = pixels / 255
    for c in (m for m in net.modules() if isinstance(m, nn.Conv2d)):
        x = F.conv2d(x, c.weight, c.bias, padding="same")
    assert x.shape == (3, 5, 5, 6)
    torch.testing.assert_close(net(pixels)[:, 0], x.flatten(1))


@pytest.mark.parametrize(
    "text, says",
    [
        ("Conv[3x3]", r"Conv\[3x3\] is not as Conv\[3x3,64\]"),
        ("Conv[3x3,0]", "is not as"),
        ("Conv[a,4]", "is not as"),
        ("Dropout[1]", "is not as Dropout"),
        ("MaxPool[2x2,2,valid]", "is not as MaxPool"),
        ("Convolution[3x3,4]", "unknown layer 'Convolution'; known: Conv, "),
        ("Conv[3x3,4", "is no layer"),
        ("{Conv[3x3,4]}", "is no layer"),
        ("FC[4] Conv[3x3,4]", "stands behind FC"),
        ("MaxPool[9x9,2]", "an image of 8 x 8 is too small for MaxPool"),
        ("{ReLU}x201", "more than 200"),
        ("{}x9999999999", "is no layer"),
        ("{ReLU}x" + "9" * 5000, "is no layer"),
        ("FC[99999999999999999999]", r"FC\[9+\] is not as FC\[256\], or too large"),
        ("Pad[99999999999999] FC[4]", r"FC\[4\] is not as FC\[256\], or too large"),
    ],
)
def test_a_line_that_is_no_network_is_refused(text, says):
    with pytest.raises(ValueError, match=says):
        network(text, (1, 8, 8))


def test_the_documents_networks():
    """Their sizes, by table 1: kernels, biases, and two numbers a channel that is normalised."""

    def conv(*sizes: int) -> int:
        return sum(k * k * a * b + b for k, a, b in zip(sizes[::3], sizes[1::3], sizes[2::3]))

    want = {
        "mnist": conv(3, 1, 64, *(3, 64, 64) * 9) + 9 * 64 * 256 + 256,
        "cifar10": conv(3, 3, 32, 3, 32, 32, 3, 32, 64, 3, 64, 64, 3, 64, 128, 3, 128, 128)
        + 2 * (2 * 32 + 2 * 64 + 2 * 128 + 128)
        + 16 * 128 * 128
        + 128,
    }
    for name, parameters in want.items():
        net = network(read_config(f"config/{name}.py")["trunk_args"]["layers"], KINDS[name].shape)
        assert sum(p.numel() for p in net.parameters()) == parameters
    deep = list(items(read_config("config/cifar100.py")["trunk_args"]["layers"]))
    assert [str(i) for i in deep if i.name == "Conv"][-3:] == [
        "Conv[1x1,1024]",
        "Conv[2x2,1152]",
        "Conv[1x1,1152]",
    ]
    assert sum(i.name == "Conv" for i in deep) == 18 and sum(i.name == "DO" for i in deep) == 7


@pytest.mark.parametrize("name", CONFIGS)
def test_every_config_can_be_made(name):
    c = TrainConfig.read([f"config/{name}.py"])
    assert (c.name, c.block_size, c.tied, c.trunk) == (name, 1, False, "cnn")
    assert c.trunk_args["shape"] == list(KINDS[c.dataset].shape)


def test_initial_weights_are_glorots_and_hes():
    torch.manual_seed(0)
    for he, bound in ((False, math.sqrt(6 / (9 * 3 + 9 * 64))), (True, math.sqrt(6 / (9 * 3)))):
        net = network("Conv[3x3,64] FC[256]", (3, 8, 8), he)
        conv, linear = (m for m in net.modules() if isinstance(m, nn.Conv2d | nn.Linear))
        assert 0.95 * bound < conv.weight.abs().max() <= bound
        assert not conv.bias.any() and not linear.bias.any()
    bound, weight = math.sqrt(6 / 266), net.new_readout()
    assert 0.95 * bound < weight[:10].abs().max() <= bound and not weight[10:].any()


# ---- what is measured


class Table(nn.Module):
    """A trunk that gives each image the hidden state that its first pixel names."""

    embedding = None

    def __init__(self, hidden: torch.Tensor):
        super().__init__()
        self.hidden = hidden

    def forward(self, tokens: torch.Tensor, positions: None = None) -> torch.Tensor:
        return self.hidden[tokens[:, 0, 0, 0].long()][:, None]


def test_accuracy_nll_and_ece_by_hand():
    p = torch.tensor([[0.7, 0.2, 0.1], [0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]])
    model = LanguageModel(Table(p.log()), make_head("softmax", 3, nn.Parameter(torch.eye(3))))
    labels = np.array([0, 1, 1, 0])
    images = Images(np.arange(4, dtype=np.uint8)[:, None, None, None], labels)
    found = judge(model.eval(), images, torch.device("cpu"), "float32", model.head.draws(1, 0))
    assert found.accuracy == 50 and found.zeros == 0
    assert found.nll == pytest.approx(-(math.log(0.7) + math.log(0.2) + math.log(0.8) + math.log(0.3)) / 4)
    # bins of 1/15: .7 twice, one right; .8, right; .4, wrong
    assert found.ece == pytest.approx((abs(1 - 1.4) + abs(1 - 0.8) + abs(0 - 0.4)) / 4, abs=1e-6)


def test_a_class_of_probability_zero_is_counted():
    model = LanguageModel(
        Table(torch.tensor([[9.0, 0, 0], [0, 9.0, 0]])), make_head("sparsemax", 3, nn.Parameter(torch.eye(3)))
    )
    images = Images(np.arange(2, dtype=np.uint8)[:, None, None, None], np.array([0, 2]))
    found = judge(model.eval(), images, torch.device("cpu"), "float32", model.head.draws(1, 0))
    assert found.accuracy == 50 and found.nll == math.inf and found.zeros == 1 and found.ece == 0.5


# ---- training: stopping, going on, diverging and all else are tests/test_train.py's


@pytest.mark.parametrize("head", HEADS)
def test_every_head_trains(flags, head):
    """Every parameter gets a gradient, and a few steps change the network."""
    trainer = train.Trainer(TrainConfig.read(flags(head=head, weight_decay=0.1)), train.Processes("cpu"))
    before = {k: v.clone() for k, v in trainer.model.state().items()}
    trainer.model.train()
    losses = [trainer.train_step() for _ in range(3)]
    trainer.close()
    assert all(map(math.isfinite, losses))
    assert all(not torch.equal(v, before[k]) for k, v in trainer.model.state().items())
    found = trainer.task.judged(trainer.evaluator, "test")
    assert 0 <= found.accuracy <= 100 and 0 <= found.ece <= 1 and found.nll > 0


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_run_learns_and_leaves_its_files(flags, run, tmp_path, optimizer):
    rate = {"adam": 0.01, "sgd": 0.1}[optimizer]
    changes = dict(optimizer=optimizer, learning_rate=rate, min_lr=rate, max_steps=90)
    assert run(flags("FC[32] ReLU", **changes)) == 0
    result = json.loads((tmp_path / "out" / "test.json").read_text())
    assert result["accuracy"] > 90 and result["training"]["dataset"] == "mnist"
    evaluations = [e for e in entries(tmp_path / "out") if "val_accuracy" in e]
    assert [e["step"] for e in evaluations] == list(range(9, 91, 9))
    best = max(evaluations, key=lambda e: (e["val_accuracy"], -e["val_nll"]))
    assert result["best_step"] == best["step"] and result["val_accuracy"] == best["val_accuracy"]


def test_a_run_stopped_at_its_test_is_tested_when_it_goes_on(flags, run, tmp_path, monkeypatch, capsys):
    def stopped(*_):
        raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(ClassesTask, "test", stopped)
        assert run(flags("FC[32] ReLU")) == 128 + signal.SIGTERM
    assert "--resume goes on" in capsys.readouterr().out and not (tmp_path / "out" / "test.json").exists()
    assert run([*flags("FC[32] ReLU"), "--resume"]) == 0 and (tmp_path / "out" / "test.json").exists()


def test_l2_is_of_the_networks_matrices_alone(flags):
    flags = flags(optimizer="sgd", weight_decay=0.1, beta1=0.5)
    trainer = train.Trainer(TrainConfig.read(flags), train.Processes("cpu"))
    trainer.close()
    decays = {id(p): g["weight_decay"] for g in trainer.optimizer.param_groups for p in g["params"]}
    for name, p in trainer.model.named_parameters():
        assert decays[id(p)] == 0.1 * (p.dim() > 1 and name.startswith("trunk."))
    assert all(g["momentum"] == 0.5 and g["nesterov"] for g in trainer.optimizer.param_groups)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_resume_is_exact(flags, run, tmp_path, equal_state, monkeypatch, optimizer):
    """With dropout, and the means and variances of batch normalisation."""
    flags = functools.partial(flags, optimizer=optimizer)
    assert run(flags(out_dir=tmp_path / "whole")) == 0
    step = train.Trainer.train_step

    def until_13(self: train.Trainer) -> float:
        if self.step == 13:
            self.on_signal(signal.SIGINT, None)
        return step(self)

    with monkeypatch.context() as patch:
        patch.setattr(train.Trainer, "train_step", until_13)
        assert run(flags()) == 128 + signal.SIGINT
    assert run([*flags(), "--resume"]) == 0
    for which in ("last", "best"):
        whole, resumed = (
            checkpoint.load(tmp_path / out / which, classifier=True) for out in ("whole", "out")
        )
        assert equal_state(whole.weights, resumed.weights) and whole.progress == resumed.progress
    assert any("running_mean" in k for k in whole.weights)
    results = [json.loads((tmp_path / out / "test.json").read_text()) for out in ("whole", "out")]
    assert results[0]["nll"] == results[1]["nll"]


@pytest.mark.parametrize("which", ["best", "best.new"])
def test_a_run_killed_before_its_best_was_saved_goes_on(flags, run, tmp_path, which, equal_state):
    """`last` is saved first, so that is all there is."""
    assert run(flags(max_steps=9)) == 0
    best = checkpoint.load(tmp_path / "out" / "best", classifier=True)
    (tmp_path / "out" / "best").rename(tmp_path / "out" / which)
    if which == "best":
        shutil.rmtree(tmp_path / "out" / which)
    assert run([*flags(max_steps=9), "--resume"]) == 0
    again = checkpoint.load(tmp_path / "out" / "best", classifier=True)
    assert equal_state(best.weights, again.weights) and best.progress == again.progress


def test_of_equal_accuracy_the_lower_nll_is_the_best(flags, run, tmp_path, monkeypatch):
    judged = iter([Judged(50, 1.0, 0, 0), Judged(50, 0.9, 0, 0), Judged(40, 0.1, 0, 0), Judged(0, 9.0, 0, 0)])
    monkeypatch.setattr("labs.classes.task.judge", lambda *_: next(judged))
    assert run(flags(max_steps=3, eval_interval=1)) == 0
    best = checkpoint.load(tmp_path / "out" / "best", weights=False, classifier=True).progress
    assert (best["step"], best["val_error"], best["val_nll"]) == (2, 50, 0.9)


@pytest.mark.parametrize(
    "layers, changes, says",
    [
        (LAYERS, dict(head="taylr"), "unknown head 'taylr'; known: softmax"),
        (LAYERS, dict(head="taylor", head_args={"n": 3}), "n = 3: an odd f_n"),
        ("Conv", {}, "Conv is not as"),
        ("{ReLU}x999", {}, "more than 200"),
        (LAYERS, dict(optimizer="rmsprop"), "optimizer = 'rmsprop'"),
        (LAYERS, dict(trunk="any_order"), "trunk"),
        (LAYERS, dict(labels="hard"), "labels = 'hard' with dataset"),
        (LAYERS, dict(n_embd=3), "n_embd = 3 with dataset"),
        (LAYERS, dict(eval_windows=3), "eval_windows = 3 with dataset"),
        (LAYERS, {"trunk_args.h": True}, "does not take trunk_args"),
        (LAYERS, dict(dataset="wikitext103"), "does not take trunk_args"),
        ("FC[99999999999]", {}, "too large|needs at least"),
        ("5", {}, "layers = 5 for images"),
        (LAYERS, {"trunk_args.shape": [3, 8, 8]}, "shape = .3, 8, 8. with dataset = 'mnist'"),
    ],
)
def test_what_cannot_be_is_refused(flags, run, layers, changes, says, tmp_path):
    with pytest.raises(ValueError, match=says):
        run(flags(layers, **changes))
    assert not (tmp_path / "out").exists()


def test_a_run_is_not_resumed_as_another(flags, run, tmp_path):
    assert run(flags(max_steps=1)) == 0
    with pytest.raises(UserError, match="trunk_args was"):
        run([*flags("FC[4]", max_steps=1), "--resume"])
    other, shape = tmp_path / "other", KINDS["mnist"].shape
    write_mnist(other, made(300, shape, 10, 5), made(100, shape, 10, 6))
    with pytest.raises(UserError, match="data_sha256 was"):
        run([*flags(source=other, max_steps=1), "--resume"])


def test_a_classifier_is_no_language_model(flags, run, tmp_path):
    assert run(flags(max_steps=1)) == 0
    says = "config.json is a classifier's"
    with pytest.raises(UserError, match=says):
        checkpoint.load_model(tmp_path / "out")
    with pytest.raises(UserError, match=says):
        checkpoint.load(tmp_path / "out" / "best", weights=False, run=True)
    assert checkpoint.load_model(tmp_path / "out", classifier=True)[0].trunk.config.vocab_size == 10


def test_a_network_for_images_reads_no_tokens():
    with pytest.raises(UserError, match="trunk = 'cnn' reads images, and this dataset has tokens"):
        network("FC[4]", (1, 8, 8))(torch.zeros(2, 5, dtype=torch.long))


def test_without_the_lab_its_names_are_unknown(monkeypatch):
    monkeypatch.setattr("runtime.places.CODE", Path("nowhere"))
    with pytest.raises(UserError, match="unknown dataset 'mnist'"):
        train.Trainer(TrainConfig(dataset="mnist"), train.Processes("cpu"))
    with pytest.raises(UserError, match="trunk = 'cnn': use one of gpt, modern$"):
        TrainConfig(trunk="cnn").check()
    with pytest.raises(UserError, match="measure = 'classes': use one of text, decoding, curve"):
        find_measure("classes")


# ---- the table


@pytest.fixture
def make(source, tmp_path, run, monkeypatch):
    """make(**changes) -> (exit code, rows by name, the runs that were trained), all in this process."""

    def call(**changes: object) -> tuple[int, dict, list[str]]:
        trained = []

        def train_all(runs: list, jobs: int, ended: object) -> None:
            for r in (r for r in runs if not r.finished):
                trained.append(r.out.name)
                assert ended(r, run([*r.arguments, *(["--resume"] if r.started else [])]))

        monkeypatch.setattr(table, "train_all", train_all)
        rows = ["softmax", "taylor_2 --head=taylor --head_args.n=2", "mine --head=sparsemax"]
        flags = f"--source={source} --trunk_args.layers=FC[8] --batch_size=50 --max_steps=5 --eval_interval=5"
        values = dict(
            rows=rows, flags=f"{flags} --device=cpu", evaluate=f"--source={source}", seeds=[2, 3, 4]
        )
        values |= dict(name="t", runs=tmp_path / "runs", results=tmp_path / "results") | changes
        code = table.main(["config/tables/mnist.py", *(f"--{k}={v}" for k, v in values.items())])
        return code, {r["name"]: r for r in Store(tmp_path / "results/t.jsonl").rows("classes")}, trained

    return call


def test_images_that_cannot_be_had_are_found_before_any_training(make, tmp_path):
    with pytest.raises((UserError, FileNotFoundError), match="nosuch") as caught:
        make(flags=f"--source={tmp_path / 'nosuch'} --trunk_args.layers=FC[8]")
    assert "\n" not in str(caught.value) and not (tmp_path / "runs").exists()


def test_other_images_of_the_measure_are_found_before_any_training(make, tmp_path):
    shape = KINDS["mnist"].shape
    write_mnist(tmp_path / "other", made(30, shape, 10, 5), made(10, shape, 10, 6))
    with pytest.raises(UserError, match="mnist of .*other.*: other images cannot stand in one table"):
        make(evaluate=f"--source={tmp_path / 'other'}")
    assert not (tmp_path / "runs").exists()


def test_rows_of_other_images_are_not_kept(make, tmp_path):
    assert make(rows=["softmax"], seeds=[2])[0] == 0
    store = Store(tmp_path / "results/t.jsonl")
    (row,) = store.rows("classes")
    assert row["settings"]["corpus"] == row["training"]["data_sha256"]
    store.put([row | {"settings": row["settings"] | {"corpus": "0" * 64}}])
    with pytest.raises(UserError, match="holds rows of other settings .corpus '0000"):
        make(rows=["softmax"], seeds=[3])


def test_the_runs_own_source_is_enough(make):
    assert make(rows=["softmax"], seeds=[2], evaluate="")[0] == 0


def test_the_table_has_means_beside_the_documents(make, tmp_path):
    code, rows, trained = make()
    assert code == 0 and len(trained) == 9 == len(rows)
    summary = {r["name"]: r for r in summary_of([*rows.values()])}
    assert [*summary] == ["softmax", "taylor_2", "mine"]
    assert summary["taylor_2"]["published"] == 99.54 and "published" not in summary["mine"]
    tested = [json.loads((tmp_path / f"runs/taylor_2-mnist-{s}/test.json").read_text()) for s in (2, 3, 4)]
    assert summary["taylor_2"]["accuracy_seeds"] == [r["accuracy"] for r in tested]
    assert [rows[f"taylor_2-mnist-{s}"]["nll"] for s in (2, 3, 4)] == pytest.approx(
        [r["nll"] for r in tested]
    )
    text = (tmp_path / "results/t.md").read_text()
    assert "NOT tuned" in text and "99.54" in text
    # what is done needs no folder any more, and is kept
    (tmp_path / "runs").rename(tmp_path / "gone")
    assert make()[1:] == (rows, [])


def test_a_run_that_diverged_is_a_row_that_says_so(make, tmp_path):
    rows = ["softmax", "wild --optimizer=sgd --learning_rate=1e30 --min_lr=1e30"]
    code, found, trained = make(rows=rows, seeds=[2])
    assert code == 1 and len(trained) == 2
    assert "its training diverged" in found["wild-mnist-2"]["problem"]
    assert "wild-mnist-2 could not be evaluated" in (tmp_path / "results/t.md").read_text()
    assert make(rows=rows, seeds=[2])[2] == []
    with pytest.raises(UserError, match="no run of this table is finished; diverged: wild-mnist-2"):
        make(rows=rows[1:], seeds=[2])


def test_a_run_on_text_has_no_classes(make):
    with pytest.raises(UserError, match="is text: --measure=text measures its runs"):
        make(flags="--dataset=demo --source=", rows=["softmax"], overlay="tiny")


@pytest.mark.parametrize("files", [["mnist"], ["mnist", "mnist_brief"]])
def test_the_rows_are_the_documents(files):
    c = configure(TableConfig, [f"config/tables/{f}.py" for f in files])
    c.check()
    runs = [Run.make(row, 2, c) for row in c.rows]
    for figures in PUBLISHED.values():
        assert figures.keys() - {run.row for run in runs} == {"sm_softmax_0"}
    for run, row in zip(runs, c.rows):
        assert run.wanted["gain"] == 1 and run.wanted["head"] in row + " softmax"
        assert run.wanted["row"] == run.row


@pytest.mark.skipif("MNIST_DIR" not in os.environ, reason="MNIST_DIR names no folder")
def test_the_real_mnist():
    found = open_images("mnist", os.environ["MNIST_DIR"])
    assert [len(s) for s in found[1:]] == [54000, 6000, 10000]
    assert np.bincount(found.test.labels)[0] == 980


@pytest.mark.parametrize("name", ["classes", "images"])
def test_a_run_that_diverged_stands_in_the_table(name):
    measure, place = find_measure(name), {"row": "lost", "overlay": "", "seed": 1, "training": {}}
    lost = {"name": "lost-1", **place, "settings": {"images": "mnist"}, "problem": "its training diverged"}
    assert "its training diverged" in measure.view([lost]).markdown
    assert measure.which == {"classes": "best", "images": "last"}[name]
