"""Image classifiers: the files of the sets, the network from its line, training with any head, what is
measured, and the table."""

import functools
import gzip
import json
import math
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import table
import train
from common.config import read, read_config
from common.errors import UserError
from common.log import entries
from config.defaults import TrainConfig
from heads import HEADS, make_head
from labs.classes import sets
from labs.classes.judge import PUBLISHED, Judged, judge_images
from labs.classes.measure import summarise_classes
from labs.classes.sets import KINDS, Images, open_images
from labs.classes.trunk import CNN, items, width
from model import GPTConfig, LanguageModel
from tables.jobs import Job
from tables.settings import TableConfig
from tables.store import Store
from tests.fixtures import handlers_kept, same_tensors
from tests.test_train import at_step
from training.run import Run
from training.text import with_task_defaults

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


@pytest.mark.parametrize("change", [dict(trunk="gpt"), dict(tied=True), dict(n_layer=2)], ids=str)
def test_a_setting_that_images_decide_is_refused(flags, change):
    with pytest.raises(UserError, match=next(iter(change))):
        with_task_defaults(read(TrainConfig, flags(**change)))


@pytest.fixture
def run():
    """run(argv) -> exit code of train.main; signal handlers as they were."""

    def call(argv: list[str]) -> int:
        with handlers_kept():
            return train.main(argv)

    return call


# ---- files


@pytest.mark.parametrize("below, zipped", [("", False), ("raw", True), ("MNIST/raw", False)])
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
    files = {"train.bin": parts, "test.bin": [test]}
    if name == "cifar10":
        files = {f"data_batch_{i}.bin": [part] for i, part in enumerate(parts, 1)}
        files["test_batch.bin"] = [test]
    for file, images in files.items():
        content = b"".join(cifar_bytes(each, coarse=name == "cifar100") for each in images)
        (folder / file).write_bytes(content)
    train, found = sets.from_folder(name, tmp_path)
    assert np.array_equal(found.pixels, test.pixels) and np.array_equal(found.labels, test.labels)
    assert np.array_equal(train.pixels, np.concatenate([p.pixels for p in parts]))
    assert np.array_equal(train.labels, np.concatenate([p.labels for p in parts]))


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


@pytest.mark.parametrize(
    "name, change",
    [
        (IMAGES, lambda content: content[:-1]),
        (IMAGES, lambda content: idx(np.zeros((20, 8, 8)))),
        (LABELS, lambda content: idx(np.full(20, 10))),
        (LABELS, lambda content: idx(np.zeros(19))),
        (f"{IMAGES}.gz", lambda content: gzip.compress(content)[:-20]),
    ],
)
def test_damaged_files_are_refused(tmp_path, name, change):
    shape = KINDS["mnist"].shape
    write_mnist(tmp_path, made(20, shape, 10, 0), made(7, shape, 10, 1))
    plain = tmp_path / name.removesuffix(".gz")
    content = plain.read_bytes()
    plain.unlink()
    (tmp_path / name).write_bytes(change(content))
    with pytest.raises(UserError, match="image|label"):
        open_images("mnist", str(tmp_path))


def test_pickles_are_not_read(tmp_path):
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "x").write_bytes(b"cos\nsystem\n(S'echo'\ntR.")
    with pytest.raises(UserError, match=str(tmp_path)):
        open_images("cifar10", str(tmp_path))


# ---- the network


@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_a_line_is_the_network_it_says():
    torch.manual_seed(0)
    text = "Conv[2x2,5] ReLU {Conv[3x3,5] ReLU}x2 MaxPool[2x2,2,same] BN ELU FC[7] Dropout[0.5]"
    net = network(text, (2, 7, 7)).eval()
    convs = [m for m in net.modules() if isinstance(m, nn.Conv2d)]
    (linear,) = (m for m in net.modules() if isinstance(m, nn.Linear))
    pixels = torch.randint(256, (3, 2, 7, 7), dtype=torch.uint8)
    x = pixels / 255
    for c in convs:
        x = F.conv2d(x, c.weight, c.bias, padding="same").relu()
    x = F.max_pool2d(F.pad(x, (0, 1, 0, 1), value=-math.inf), 2) / math.sqrt(1 + 1e-3)
    want = F.linear(F.elu(x).flatten(1), linear.weight, linear.bias)
    assert net.config.n_embd == 7 and net(pixels).shape == (3, 1, 7)
    torch.testing.assert_close(net(pixels)[:, 0], want)


def test_the_documents_networks():
    """Their sizes, by table 1: kernels, biases, and two numbers a channel that is normalised."""

    def conv(*sizes: int) -> int:
        return sum(k * k * a * b + b for k, a, b in zip(sizes[::3], sizes[1::3], sizes[2::3]))

    want = {"mnist": conv(3, 1, 64, *(3, 64, 64) * 9) + 9 * 64 * 256 + 256}
    want["cifar10"] = conv(3, 3, 32, 3, 32, 32, 3, 32, 64, 3, 64, 64, 3, 64, 128, 3, 128, 128)
    want["cifar10"] += 2 * (2 * 32 + 2 * 64 + 2 * 128 + 128) + 16 * 128 * 128 + 128
    for name, parameters in want.items():
        net = network(read_config(f"config/{name}.py")["trunk_args"]["layers"], KINDS[name].shape)
        assert sum(p.numel() for p in net.parameters()) == parameters
    deep = list(items(read_config("config/cifar100.py")["trunk_args"]["layers"]))
    convs = [str(i) for i in deep if i.name == "Conv"]
    assert convs[-3:] == ["Conv[1x1,1024]", "Conv[2x2,1152]", "Conv[1x1,1152]"]
    assert len(convs) == 18 and sum(i.name == "DO" for i in deep) == 7


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


def judged(head: str, hidden: torch.Tensor, labels: list[int]) -> Judged:
    """Of an image for each label, the logits of which are a row of `hidden`."""
    model = LanguageModel(Table(hidden), make_head(head, 3, nn.Parameter(torch.eye(3)))).eval()
    images = Images(np.arange(len(labels), dtype=np.uint8)[:, None, None, None], np.array(labels))
    return judge_images(model, images, torch.device("cpu"), "float32", model.head.draws(1, 0))


def test_accuracy_nll_and_ece_by_hand():
    p = torch.tensor([[0.7, 0.2, 0.1], [0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]])
    found = judged("softmax", p.log(), [0, 1, 1, 0])
    assert found.accuracy == 50 and found.zeros == 0
    assert found.nll == pytest.approx(-(math.log(0.7) + math.log(0.2) + math.log(0.8) + math.log(0.3)) / 4)
    # bins of 1/15: .7 twice, one right; .8, right; .4, wrong
    assert found.ece == pytest.approx((abs(1 - 1.4) + abs(1 - 0.8) + abs(0 - 0.4)) / 4, abs=1e-6)
    found = judged("sparsemax", torch.tensor([[9.0, 0, 0], [0, 9.0, 0]]), [0, 2])
    assert found.accuracy == 50 and found.nll == math.inf and found.zeros == 1 and found.ece == 0.5


# ---- training: stopping, going on, diverging and all else are tests/test_train.py's


@pytest.mark.parametrize("head", [*HEADS][::5])
def test_heads_train(flags, head):
    """Every parameter gets a gradient, and a few steps change the network. Only its matrices decay."""
    config = with_task_defaults(read(TrainConfig, flags(head=head, weight_decay=0.1)))
    t = train.initialise(config, train.Processes("cpu"))
    decays = {id(p): g["weight_decay"] for g in t.optimizer.param_groups for p in g["params"]}
    for name, p in t.model.named_parameters():
        assert decays[id(p)] == 0.1 * (p.dim() > 1 and name.startswith("trunk."))
    before = {k: v.clone() for k, v in t.model.state().items()}
    t.model.train()
    losses = [train.train_step(t) for _ in range(3)]
    t.loader.close()
    assert all(map(math.isfinite, losses))
    assert all(not torch.equal(v, before[k]) for k, v in t.model.state().items())
    found = t.task.judge_split(train.Evaluator(t.model, t.config, t.procs), "test")
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


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_resume_is_exact(flags, run, tmp_path, monkeypatch, optimizer):
    """With dropout, and the means and variances of batch normalisation."""
    flags = functools.partial(flags, optimizer=optimizer)
    assert run(flags(out_dir=tmp_path / "whole")) == 0
    with monkeypatch.context() as patch:
        at_step(patch, 14, lambda: signal.raise_signal(signal.SIGINT))
        assert run(flags()) == 128 + signal.SIGINT
    assert run([*flags(), "--resume"]) == 0
    for which in ("last", "best"):
        paths = (tmp_path / out / which for out in ("whole", "out"))
        whole, resumed = (Run(path) for path in paths)
        assert same_tensors(whole.weights(), resumed.weights()) and whole.progress == resumed.progress
    assert any("running_mean" in k for k in whole.weights())
    results = [json.loads((tmp_path / out / "test.json").read_text()) for out in ("whole", "out")]
    assert results[0]["nll"] == results[1]["nll"]


def test_of_equal_accuracy_the_lower_nll_is_the_best(flags, run, tmp_path, monkeypatch):
    judged = iter([Judged(50, 1.0, 0, 0), Judged(50, 0.9, 0, 0), Judged(40, 0.1, 0, 0), Judged(0, 9.0, 0, 0)])
    monkeypatch.setattr("labs.classes.task.judge_images", lambda *_: next(judged))
    assert run(flags(max_steps=3, eval_interval=1)) == 0
    best = Run(tmp_path / "out" / "best").progress
    assert best.step == 2 and best.val == {"error": 50, "nll": 0.9}


# ---- the table


@pytest.fixture
def make(source, tmp_path, run, monkeypatch):
    """make(**changes) -> (exit code, rows by name, the runs that were trained), all in this process."""

    def call(**changes: object) -> tuple[int, dict, list[str]]:
        trained = []

        def train_all(jobs: list, at_a_time: int) -> None:
            for job in jobs:
                trained.append(job.out.name)
                assert run([*job.arguments]) == 0

        monkeypatch.setattr(table, "train_all", train_all)
        rows = ["softmax", "taylor_2 --head=taylor --head_args.n=2", "mine --head=sparsemax"]
        flags = "--trunk_args.layers=FC[8] --batch_size=50 --max_steps=5 --eval_interval=5 --device=cpu"
        values = dict(rows=rows, flags=f"--source={source} {flags}", evaluate=f"--source={source}")
        values |= dict(seeds=[2, 3, 4], name="t", runs=tmp_path / "runs", results=tmp_path / "results")
        code = table.main(["config/tables/mnist.py", *(f"--{k}={v}" for k, v in (values | changes).items())])
        return code, {r["name"]: r for r in Store(tmp_path / "results/t.jsonl").rows("classes")}, trained

    return call


def test_the_table_has_means_beside_the_documents(make, tmp_path):
    other, shape = tmp_path / "other", KINDS["mnist"].shape
    write_mnist(other, made(30, shape, 10, 5), made(10, shape, 10, 6))
    with pytest.raises(UserError, match="other"):  # found before any training
        make(evaluate=f"--source={other}")
    assert not (tmp_path / "runs").exists()
    code, rows, trained = make()
    assert code == 0 and len(trained) == 9 == len(rows)
    summary = {r["name"]: r for r in summarise_classes([*rows.values()])}
    assert [*summary] == ["softmax", "taylor_2", "mine"]
    assert summary["taylor_2"]["published"] == 99.54 and "published" not in summary["mine"]
    tested = [json.loads((tmp_path / f"runs/taylor_2-mnist-{s}/test.json").read_text()) for s in (2, 3, 4)]
    assert summary["taylor_2"]["accuracy_seeds"] == [r["accuracy"] for r in tested]
    nll = [rows[f"taylor_2-mnist-{s}"]["nll"] for s in (2, 3, 4)]
    assert nll == pytest.approx([r["nll"] for r in tested])
    assert "99.54" in (tmp_path / "results/t.md").read_text()
    # what is done needs no folder any more, and is kept
    (tmp_path / "runs").rename(tmp_path / "gone")
    assert make()[1:] == (rows, [])


@pytest.mark.parametrize("files", [["mnist"], ["mnist", "mnist_brief"]])
def test_the_rows_are_the_documents(files):
    c = read(TableConfig, [f"config/tables/{f}.py" for f in files])
    runs = [Job.make(c, row, 2) for row in c.rows]
    for figures in PUBLISHED.values():
        assert figures.keys() - {run.fields["row"] for run in runs} == {"sm_softmax_0"}
    for run, row in zip(runs, c.rows):
        assert run.wanted["gain"] == 1 and run.wanted["head"] in row + " softmax"
        assert run.wanted["row"] == run.fields["row"]


@pytest.mark.skipif("MNIST_DIR" not in os.environ, reason="MNIST_DIR names no folder")
def test_the_real_mnist():
    found = open_images("mnist", os.environ["MNIST_DIR"])
    assert [len(s) for s in found[1:]] == [54000, 6000, 10000]
    assert np.bincount(found.test.labels)[0] == 980
