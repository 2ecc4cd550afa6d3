"""Images as tokens: the corpus, tokenizers, dropped classes, guidance, samples; and the images measure:
Frechet distance, precision and recall where they are known, and rows of a tiny run."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from scipy.linalg import sqrtm

import train
from common.errors import UserError
from data.batches import TextSource, Windows
from data.tokens import open_tokens
from evaluate.decoding import AS_SCORED
from labs.classes.sets import Images, ImageSet
from labs.images import sample
from labs.images.guidance import guide, only_codes, sample_codes
from labs.images.image_tokens.codecs import VQ, Patches, make_codec, read_codec, save_codec
from labs.images.image_tokens.prepare import Layout, corpus
from labs.images.measure import TITLES
from labs.images.quality import Seen, frechet, halves, moments, precision_recall, quality_numbers
from model import build
from tests.fixtures import TrueToken, train_on
from tests.measure_contract import *  # noqa: F403
from tests.measure_contract import Example, rows_of

SMALL = dict(dataset="image_tokens", block_size=17, max_steps=2, eval_interval=2)
LOSSLESS = "digits patches codes=6"


def made(count: int, seed: int) -> Images:
    """Images of 8 x 8 made of six different patches of 2 x 2."""
    rng = np.random.default_rng(seed)
    patches = np.array([[0] * 4, [255] * 4, [0, 255] * 2, [255, 0] * 2, [0, 0, 255, 255], [99] * 4])
    at = rng.integers(6, size=(count, 4, 4))
    pixels = patches[at].reshape(count, 4, 4, 2, 2).transpose(0, 1, 3, 2, 4).reshape(count, 1, 8, 8)
    return Images(pixels.astype(np.uint8), np.arange(count, dtype=np.int64) % 10)


@pytest.fixture(scope="module", autouse=True)
def images() -> Iterator[ImageSet]:
    """They take the digits' place."""
    made_up = ImageSet("digits", made(80, 0), made(20, 1), made(40, 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("labs.images.image_tokens.prepare.open_images", lambda *_: made_up)
        yield made_up


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A prepared folder of them. Read only."""
    return corpus.prepare(tmp_path_factory.mktemp("images") / "words", "words", LOSSLESS)


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory) -> Path:
    """The out folder of a tiny model of these images. Read only."""
    return train_on(folder, tmp_path_factory.mktemp("runs") / "images-1", **SMALL)


def test_patches_come_back_from_their_codes(images):
    codec = make_codec("patches", (1, 8, 8), 2, 6, seed=0).requires_grad_(False)
    codec.fit(images.train.pixels, 0, 0)
    codes = codec.encode(images.test.pixels)
    assert codes.shape == (40, 16) and codes.min() >= 0 and codes.max() < 6
    assert np.array_equal(codec.decode(codes), images.test.pixels)


def test_codes_are_in_raster_order_and_colours_stay_together():
    pixels = np.zeros((1, 3, 4, 4), np.uint8)
    pixels[0, 1, :2, 2:] = 255  # the second patch is green
    codec = Patches((3, 4, 4), 2, 2)
    codec.codebook[1, 4:8] = 1
    assert codec.encode(pixels).tolist() == [[0, 1, 0, 0]]
    assert np.array_equal(codec.decode(codec.encode(pixels)), pixels)


def test_vq_learns_codes_and_comes_back_from_its_files(images, tmp_path):
    before, after = (make_codec("vq", (1, 8, 8), 2, 6, seed=0) for _ in range(2))
    before.fit(images.train.pixels, 0, 1)
    after.fit(images.train.pixels, 0, 60)

    def error(codec: VQ) -> float:
        rebuilt = codec.decode(codec.encode(images.test.pixels)).astype(float)
        return np.square(rebuilt - images.test.pixels).mean()

    assert error(after) < 0.8 * error(before)
    assert len(np.unique(after.encode(images.test.pixels))) > 2
    save_codec(after, tmp_path, {"source": "x"})
    again, record = read_codec(tmp_path)
    assert record["source"] == "x"
    assert np.array_equal(again.encode(images.test.pixels), after.encode(images.test.pixels))
    for file in ("codec.safetensors", "codec.json"):
        (tmp_path / file).write_bytes(b"x")
        with pytest.raises(UserError, match="codec"):
            read_codec(tmp_path)


def test_a_prepared_folder_needs_no_images_and_another_folder_is_refused(tmp_path, monkeypatch):
    out, here = tmp_path / "words", f"{LOSSLESS} in={tmp_path}"
    (tmp_path / "images.bin").touch()
    corpus.prepare(out, "words", here)
    monkeypatch.setattr("labs.images.image_tokens.prepare.open_images", None)
    for source in (LOSSLESS, here):
        assert corpus.prepare(out, "words", source) == out
    with pytest.raises(UserError, match="source"):
        corpus.prepare(out, "words", f"{LOSSLESS} in={tmp_path / 'other'}")
    (tmp_path / "images.bin").write_bytes(b"other images")
    with pytest.raises(UserError, match="changed"):
        corpus.prepare(out, "words", here)


def test_a_sequence_is_a_class_and_its_codes(folder, images):
    codec, _ = read_codec(folder)
    tokens = open_tokens(folder / "test.bin")
    rows = tokens.ids[:-1].reshape(40, 17).astype(int)
    assert np.array_equal(rows[:, 0], 6 + images.test.labels)
    assert np.array_equal(codec.decode(rows[:, 1:]), images.test.pixels)
    assert tokens.info["vocab_size"] == 6 + 10 + 1 and tokens.ids[-1] == 16
    assert [tokens.info[k] for k in ("length", "given", "dropped", "absent")] == [17, 1, 0.1, 16]


def source_of(folder: Path, **more) -> TextSource:
    return TextSource(Windows(open_tokens(folder / "train.bin"), 17), TrueToken(), 8, 3, **more)


def test_the_class_is_dropped_in_its_share_and_nothing_else(folder):
    source = source_of(folder)
    batches = [source.batch(step, 0) for step in range(200)]
    first = torch.stack([b.tokens[:, 0] for b in batches])
    assert (first == 16).float().mean().item() == pytest.approx(0.1, abs=0.03)
    assert set(first.unique().tolist()) == {*range(6, 17)}
    assert all(int(b.tokens[:, 1:].max()) < 6 for b in batches)
    assert all(len(b.targets.ids) == 8 * 16 and int(b.targets.ids.max()) < 6 for b in batches)
    again, whole = source_of(folder), batches[5].tokens
    assert all(torch.equal(again.batch(s, 0).tokens, batches[s].tokens) for s in (0, 7, 199))
    halves = [source_of(folder, rank=r, world=2).batch(5, 0).tokens for r in (0, 1)]
    assert torch.equal(whole[0::2], halves[0]) and torch.equal(whole[1::2], halves[1])


def test_guidance_of_exact_zeros():
    p, q = torch.tensor([[0.5, 0.3, 0.0, 0.2]]), torch.tensor([[0.25, 0.0, 0.75, 0.0]])
    # .5 (.5 / .25), and what has no probability without the class keeps its own
    expected = torch.tensor([[1.0, 0.3, 0.0, 0.2]]) / 1.5
    torch.testing.assert_close(guide(p.log(), q.log(), 2.0).exp(), expected)
    torch.testing.assert_close(guide(p.log(), q.log(), 1.0).exp(), p)


GAIN = {"softmax": 15.0, "sparsemax": 3.0}  # at which several codes are probable


def tiny_model(head: str, trunk: str = "gpt") -> torch.nn.Module:
    torch.manual_seed(0)
    size = dict(vocab_size=6, block_size=3, n_layer=1, n_head=2, n_embd=16, dropout=0.0, trunk=trunk)
    return build({**size, "head": head, "head_args": {}, "tied": False, "gain": GAIN[head]}).eval()


def distribution(model, label: int, layout: Layout, scale: float) -> dict[tuple[int, int], float]:
    """p of each image of two codes, by the formula, from the model's own conditionals."""

    def step(*codes: int) -> np.ndarray:
        p, q = (
            model.log_probs(torch.tensor([[first, *codes]]))[0, -1, : layout.codes].exp().double().numpy()
            for first in (layout.codes + label, layout.none)
        )
        powered = np.where(q > 0, p * (p / np.where(q > 0, q, 1)) ** (scale - 1), p)
        return powered / powered.sum()

    first = step()
    pairs = itertools.product(range(layout.codes), repeat=2)
    return {(i, j): first[i] * step(i)[j] if first[i] else 0.0 for i, j in pairs}


@pytest.mark.parametrize("head", ["softmax", "sparsemax"])
@pytest.mark.parametrize("scale", [1.0, 2.0])
@pytest.mark.parametrize("trunk", ["gpt", "any_order"])
def test_samples_have_the_probabilities_of_the_formula(head, scale, trunk):
    """A model of any order draws from left to right."""
    model, layout = tiny_model(head, trunk), Layout(codes=3, classes=2)
    expected = distribution(model, 1, layout, scale)
    n, generator = 4000, torch.Generator().manual_seed(0)
    draws = model.head.draws(1, 0)
    codes = sample_codes(model, draws, layout, np.ones(n, int), scale, AS_SCORED, generator)
    for pair, p in expected.items():
        share = (codes == pair).all(1).mean()
        assert share == pytest.approx(p, abs=4 * np.sqrt(p * (1 - p) / n) + 1e-6)


def test_a_class_is_never_a_code():
    log_p = torch.full((2, 6), -30.0)
    log_p[:, 4] = 0.0  # the model is sure that a class comes next
    p = only_codes(log_p.log_softmax(1), 3, 1.0).exp()
    assert p[:, 3:].sum() == 0 and p[:, :3].sum(1) == pytest.approx(1)


def drawn(run: Path, out: Path, *flags: str) -> np.ndarray:
    assert sample.main([str(run), f"--out={out}", "--device=cpu", *flags]) == 0
    return imread(out) if out.suffix == ".png" else np.load(out)


def test_a_model_that_always_saw_its_class_is_not_guided(tmp_path):
    folder = corpus.prepare(tmp_path / "all", "words", LOSSLESS + " drop=0")
    assert all((source_of(folder).batch(step, 0).tokens[:, 0] < 16).all() for step in range(50))
    train_on(folder, tmp_path / "run", **SMALL)
    assert len(drawn(tmp_path / "run", tmp_path / "x.npy", "--grid=1x2")) == 2
    with pytest.raises(UserError, match="guided"):
        drawn(tmp_path / "run", tmp_path / "x.npy", "--cfg=2")


@pytest.fixture
def files(tmp_path) -> Path:
    folder = tmp_path / "with spaces"
    folder.mkdir()
    rng = np.random.default_rng(0)
    np.save(folder / "train_codes.npy", rng.integers(5, size=(60, 4), dtype=np.uint16))
    np.save(folder / "train_labels.npy", rng.integers(3, size=60))
    return folder


def test_files_become_a_corpus_that_trains(files, tmp_path, monkeypatch):
    folder = corpus.prepare(tmp_path / "words", "words", f"files codes=5 classes=3 in={files}")
    train_ids, held_out = (open_tokens(folder / f"{s}.bin").ids[:-1] for s in ("train", "validation"))
    rows = np.concatenate((train_ids.reshape(-1, 5), held_out.reshape(-1, 5))).astype(int)
    every = np.column_stack((5 + np.load(files / "train_labels.npy"), np.load(files / "train_codes.npy")))
    assert sorted(map(tuple, rows)) == sorted(map(tuple, every)) and len(held_out) == 5
    assert not (folder / "test.bin").exists()
    train_on(folder, tmp_path / "run", **SMALL | dict(block_size=5, head="gs_softmax_f1"))
    with pytest.raises(UserError):
        drawn(tmp_path / "run", tmp_path / "x.png")
    codes = drawn(tmp_path / "run", tmp_path / "codes.npy", "--cfg=2", "--grid=3x2")
    assert codes.shape == (6, 4) and codes.max() < 5


# ---- the measure -------------------------------------------------------------------------------------------


def test_frechet_is_scipys(seed=0):
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(300, 5)) @ rng.normal(size=(5, 5))
    b = rng.normal(size=(200, 5)) @ rng.normal(size=(5, 5)) + 1
    (m, S), (n, T) = moments(a), moments(b)
    expected = np.square(m - n).sum() + np.trace(S + T - 2 * sqrtm(S @ T).real)
    assert frechet(a, b) == pytest.approx(expected, rel=1e-9)
    assert frechet(a, a) == pytest.approx(0, abs=1e-9)
    # a ReLU that is never on: a covariance of less than full rank
    a = np.column_stack((np.arange(10.0), np.zeros(10)))
    assert frechet(a, a + [0, 3]) == pytest.approx(9)


def test_precision_and_recall_by_hand():
    real = np.array([[0.0], [1], [2], [10]])  # with k = 1 balls of radius 1, 1, 1 and 8
    made = np.array([[0.5], [-1.0], [-1.5], [30]])  # radius 1.5, .5, .5 and 29.5
    # inside the real manifold, [-1, 3] and [2, 18]: .5 and -1
    # inside the made one, [-1, 2], [-1.5, -.5], [-2, -1], [.5, 59.5]: all four
    assert precision_recall(real, made, 1) == (50.0, 100.0)
    assert precision_recall(made, real, 1) == (100.0, 50.0)


def test_judged_of_the_same_images():
    rng = np.random.default_rng(0)
    same = Seen(rng.normal(size=(20, 3)), np.arange(20) % 4)
    got = quality_numbers(same, same, np.arange(20) % 2)
    assert got["fd"] == pytest.approx(0, abs=1e-9)
    assert (got["precision"], got["recall"], got["accuracy"]) == (100, 100, 50)


def test_halves_have_no_image_in_common():
    eleven = Images(np.arange(11, dtype=np.uint8).reshape(11, 1, 1, 1), np.arange(11))
    a, b = halves(eleven, 100)
    assert len(a) == len(b) == 5 and not set(a.labels) & set(b.labels)
    assert len(halves(eleven, 3)[0]) == 3


@pytest.fixture(scope="module")
def classifier(images, tmp_path_factory):
    out = tmp_path_factory.mktemp("classifier") / "cnn"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("labs.classes.task.open_images", lambda *_: images)
        patch.setattr(train.Processes, "stop_at_signals", lambda self: None)
        flags = ["config/digits.py", "--max_steps=5", "--trunk_args.layers=Conv[3x3,4] ReLU FC[6] ReLU"]
        assert train.main([*flags, "--device=cpu", f"--out_dir={out}"]) == 0
    return out


@pytest.fixture(scope="module")
def example(run, classifier):
    flags = [f"--classifier={classifier}", "--images=12", "--cfg=1,2", "--device=cpu"]
    return Example("images", [run], flags, "--images=10")


def test_a_table_has_its_rows(measured):
    row, *references = sorted(rows_of(measured), key=lambda row: row.get("reference", False))
    assert [p["cfg"] for p in row["points"]] == [1, 2]
    assert row["bits_pixel"] == pytest.approx(row["bits_code"] / 4)
    exact, through, noise = references
    # the tokenizer loses nothing of these images
    assert all(exact[key] == through[key] for key in TITLES) and noise["fd"] != exact["fd"]
    assert (measured.parent / f"table.samples/{row['name']}.png").stat().st_size > 100
