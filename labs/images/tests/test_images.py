"""The images measure: Frechet distance, precision and recall where they are known, and rows of a tiny run."""

import numpy as np
import pytest
from scipy.linalg import sqrtm

import train
from labs.classes.sets import Images
from labs.images.measure import TITLES
from labs.images.quality import Seen, frechet, halves, moments, precision_recall, quality_numbers
from labs.images.tests.test_image_tokens import folder, images, run  # noqa: F401
from tests.measure_contract import *  # noqa: F403
from tests.measure_contract import Example, rows_of


def test_frechet_is_scipys(seed=0):
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(300, 5)) @ rng.normal(size=(5, 5))
    b = rng.normal(size=(200, 5)) @ rng.normal(size=(5, 5)) + 1
    (m, S), (n, T) = moments(a), moments(b)
    expected = np.square(m - n).sum() + np.trace(S + T - 2 * sqrtm(S @ T).real)
    assert frechet(a, b) == pytest.approx(expected, rel=1e-9)
    assert frechet(a, a) == pytest.approx(0, abs=1e-9)


def test_frechet_where_features_do_not_vary():
    """A ReLU that is never on: a covariance of less than full rank."""
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


# ---- the measure


@pytest.fixture(scope="module")
def classifier(images, tmp_path_factory):  # noqa: F811
    out = tmp_path_factory.mktemp("classifier") / "cnn"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("labs.classes.task.open_images", lambda *_: images)
        patch.setattr(train.Processes, "stop_at_signals", lambda self: None)
        flags = ["config/digits.py", "--max_steps=5", "--trunk_args.layers=Conv[3x3,4] ReLU FC[6] ReLU"]
        assert train.main([*flags, "--device=cpu", f"--out_dir={out}"]) == 0
    return out


@pytest.fixture(scope="module")
def example(run, classifier):  # noqa: F811
    flags = [f"--classifier={classifier}", "--images=12", "--cfg=1,2", "--device=cpu"]
    return Example("images", [run], flags, "--images=10")


@pytest.fixture(scope="module", autouse=True)
def made_images(images):  # noqa: F811
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("labs.images.image_tokens.prepare.open_images", lambda *_: images)
        yield


def test_a_table_has_its_rows(measured):
    row, *references = sorted(rows_of(measured), key=lambda row: row.get("reference", False))
    assert [p["cfg"] for p in row["points"]] == [1, 2]
    assert row["bits_pixel"] == pytest.approx(row["bits_code"] / 4)
    exact, through, noise = references
    # the tokenizer loses nothing of these images
    assert all(exact[key] == through[key] for key in TITLES) and noise["fd"] != exact["fd"]
    assert (measured.parent / f"table.samples/{row['name']}.png").stat().st_size > 100
