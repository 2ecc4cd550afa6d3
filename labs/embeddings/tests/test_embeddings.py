"""Embeddings of texts, the test of neighbours among them, and their picture."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from common.errors import UserError
from labs.embeddings import draw as program
from labs.embeddings.tsne import embed, neighbour_accuracy
from labs.scorers.scorer import Scorer
from tables.store import Store
from tables.views import samples_file


def cloud(n: int, at: float, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(at, 1, (n, 5)).astype(np.float32)


def test_neighbours_tell_what_can_be_told_apart():
    assert neighbour_accuracy(cloud(200, 0, 1), cloud(200, 0, 2)) == pytest.approx(0.5, abs=0.1)
    assert neighbour_accuracy(cloud(200, 0, 1), cloud(200, 50, 2)) == 1
    a = cloud(50, 0, 1)
    assert neighbour_accuracy(a, a + 1e-6) == 0  # a copy's nearest neighbour is what it is a copy of
    # by hand: of 0, 1 | 3, 10, nearest are 1, 0 | 1, 3
    assert neighbour_accuracy(np.array([[0.0], [1]]), np.array([[3.0], [10]])) == 3 / 4


@torch.no_grad()
def test_a_text_is_the_mean_of_its_hidden_states(trained):
    scorer = Scorer(str(trained), torch.device("cpu"))
    found = embed(scorer, ["a text", "another text of more words " * 50])
    ids = torch.tensor(scorer.encode("a text"))
    np.testing.assert_allclose(found[0], scorer.hidden(ids).mean(0).numpy(), rtol=1e-5)
    assert found.shape == (2, scorer.hidden(ids).shape[1]) and np.isfinite(found).all()


@pytest.fixture
def table(tmp_path) -> Path:
    """A table of two rows and two references, and its texts."""
    rng = np.random.default_rng(0)
    common = {"measure": "text", "definition": 1, "settings": {}}
    names = {"human": True, "loop": True, "a": False, "b&c": False}
    rows = [common | {"name": name, "reference": reference} for name, reference in names.items()]
    Store(tmp_path / "t.jsonl").put(rows)
    for name in names:
        texts = [" ".join(rng.choice(["sea", "star", "tent"], 8)) for _ in range(12)]
        file = samples_file(tmp_path / "t", name)
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(json.dumps(t) + "\n" for t in texts))
    return tmp_path / "t"


def test_the_command(table, trained, capsys):
    assert program.main([str(table), f"--scorer={trained}", "--device=cpu", "--texts=11"]) == 0
    assert f"wrote {table}.embeddings.png" in capsys.readouterr().out
    assert (table.parent / "t.embeddings.png").is_file()
    for rows, kept in ([], ["human", "a", "b&c"]), (["loop"], ["human", "loop"]):
        texts = program.texts_of(program.EmbeddingsConfig(str(table), "x", rows, texts=11))
        assert [*texts] == kept and {len(of) for of in texts.values()} == {11}
    samples_file(table, "a").unlink()
    with pytest.raises(UserError, match="t.samples"):
        program.main([str(table), f"--scorer={trained}"])
