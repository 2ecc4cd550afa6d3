"""The contract of a corpus: what holds for each of tests/test_corpora.py and labs/sequences/tests.

    from tests.corpus_contract import *
    pytest_generate_tests = each({"mazes": Example("height=5 train=30", "height=5 train=31", (2101, 71, 71))})

runs all of it for a small example of each corpus.
"""

import importlib
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from common.config import cli
from common.places import CODE, corpora
from data.open import corpus_of, folder_of, load_tokenizer, prepared
from data.prepare import corpus as shared
from data.tokens import SPLITS, open_tokens, read_made

Source = str | Callable[[Path], str]  # as --source has it, or what writes it into a folder


class Example(NamedTuple):
    source: Source
    another: Source  # another text, or other settings
    sizes: tuple[int, int, int]  # tokens of train, validation and test
    tokenizer: str = "words"
    length: int = 0  # of sequences, and what of each is given
    given: int = 0
    truth: bool = False  # whether anybody knows it


def each(examples: dict[str, Example]) -> Callable:
    """The module's pytest_generate_tests: the tests of this file with each corpus."""

    def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
        if "example" in metafunc.fixturenames:
            metafunc.parametrize("dataset, example", examples.items(), ids=list(examples), scope="module")

    return pytest_generate_tests


def written(source: Source, folder: Path) -> str:
    return source if isinstance(source, str) else source(folder)


@pytest.fixture(scope="module")
def place(dataset, example, tmp_path_factory) -> tuple[str, str, Path]:
    """(the source, another one, the prepared folder). Read only."""
    home = tmp_path_factory.mktemp(dataset.replace("/", "-"))
    source, another = written(example.source, home / "one"), written(example.another, home / "two")
    return source, another, prepared(name_of(dataset), example.tokenizer, source, home)


def name_of(dataset: str) -> str:
    """Of the corpus; an example may have more behind a space."""
    return dataset.split()[0]


def files(folder: Path) -> dict[str, bytes]:
    """What is in a folder, by name."""
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def call(dataset: str, *flags: str) -> int:
    """The exit code of a prepare.py."""
    path = corpora()[name_of(dataset)].relative_to(CODE)
    module = importlib.import_module(".".join(path.with_suffix("").parts))
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as end:
        patch.setattr(sys, "argv", ["prepare.py", *flags])
        cli(module.main)
    return end.value.code


def test_the_splits_of_a_corpus(dataset, example, place):
    source, _, folder = place
    corpus, meta, tokenizer = corpus_of(name_of(dataset)), read_made(folder), load_tokenizer(folder)
    assert folder == folder_of(name_of(dataset), example.tokenizer, source, folder.parents[1])
    assert {*meta["splits"]} == {*SPLITS} and meta["tokenizer"] == tokenizer.name
    assert corpus.given(source) == example.given
    sequences = []
    for split, size in zip(SPLITS, example.sizes):
        held = open_tokens(folder / f"{split}.bin")
        assert len(held.ids) == size and held.info["fingerprint"] == meta["fingerprint"]
        assert held.info.get("length", 0) == example.length and held.given == example.given
        text = tokenizer.decode(held.ids)
        assert tokenizer.encode_each(text.splitlines(keepends=True)).tolist() == held.ids.tolist()
        assert held.words is None or held.words == len(text.split()) + text.count("\n")
        if example.length and not dataset.endswith(("step", "image_tokens")):  # which has few, is not drawn
            sequences += map(bytes, held.ids[:-1].reshape(-1, example.length))
    assert len({*sequences}) == len(sequences)  # splits do not repeat


def test_a_corpus_is_a_function_of_its_source(dataset, example, place, tmp_path):
    source, another, folder = place
    corpus, ids = corpus_of(name_of(dataset)), lambda folder: (folder / "train.bin").read_bytes()
    same, other = (corpus.prepare(tmp_path / s[-3:], example.tokenizer, s) for s in (source, another))
    assert files(same) == files(folder) and ids(other) != ids(folder)


def test_what_is_whole_is_kept(dataset, example, place, monkeypatch):
    source, _, folder = place
    monkeypatch.setattr(shared, "tokenise", lambda *_: pytest.fail("prepared a second time"))
    flags = f"--out={folder}", f"--tokenizer={example.tokenizer}", f"--source={source}"
    before = files(folder)
    assert call(dataset, *flags) == 0 and files(folder) == before
    monkeypatch.setattr(shared.Corpus, "prepare", lambda *_: pytest.fail("training prepares it again"))
    assert prepared(name_of(dataset), example.tokenizer, source, folder.parents[1]) == folder


def test_another_source_is_refused_or_starts_over(dataset, example, place, tmp_path, capsys):
    source, another, folder = place
    out = shutil.copytree(folder, tmp_path / "out")
    (out / "labels-x").mkdir()  # by augment.py
    (out / "labels-x/labels.bin").touch()
    before, flags = files(out), [f"--out={out}", f"--tokenizer={example.tokenizer}"]
    capsys.readouterr()
    assert call(dataset, *flags, f"--source={another}") == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("prepare.py: error: ") and str(out) in line and files(out) == before
    assert call(dataset, *flags, f"--source={another}", "--force") == 0
    new = corpus_of(name_of(dataset)).prepare(tmp_path / "new", example.tokenizer, another)
    assert files(out) == files(new)
    assert call(dataset, *flags, f"--source={source}", "--force") == 0
    assert files(out).keys() == files(folder).keys()


def test_a_truth_sums_to_1(dataset, example, place):
    source, _, folder = place
    held = open_tokens(folder / "test.bin")
    known = corpus_of(name_of(dataset)).truth(str(held.info["source"]), example.length or 16)
    assert bool(known) == example.truth
    if known and example.length:
        whole = held.ids[: 2 * example.length].reshape(2, -1).astype(int)
        asked = np.zeros(whole.shape, bool)
        asked[:, [example.given, -1]] = True
        p = np.exp(known.log_probs(np.where(asked, -1, whole), asked))
        assert p.shape == (4, held.info["vocab_size"]) and np.abs(p.sum(1) - 1).max() < 1e-12
        assert (p[np.arange(4), whole[asked]] > 0).all()
