"""Sequences that begin with tokens which are given: first in every order, without a loss, never scored."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

import eval_diversity
from common.errors import UserError
from data.batches import TextSource, Windows
from data.prepare.corpus import Contents, Split, prepare_splits
from data.tokens import open_tokens
from evaluate.scoring import in_sequences, score
from labs.orders.asking import middle_bits
from labs.orders.samplers import continue_texts
from labs.orders.task import OrdersSource, plan
from labs.orders.tests.test_trunk import asker, log_p, model_of
from labs.sequences.exact import Sequences, lines
from labs.sequences.paths import ORDERS, Order
from labs.sequences.questions import FREE, questions, templates
from labs.synthetic.tasks import TASKS
from tests.fixtures import TrueToken, train_on

TASK = TASKS["walk"](12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A prepared task of 12 tokens a sequence, the first 5 of which are given. Read only."""
    splits = {
        name: Split(lambda n=n: lines(TASK, n, (1, n)), length=12, given=5)
        for name, n in (("train", 40), ("validation", 8), ("test", 8))
    }
    out = tmp_path_factory.mktemp("given") / "words"
    return prepare_splits(out, "words", Contents("walk", splits, TASK.words))


def test_sequences_that_begin_with_given_tokens_are_no_text(folder, tmp_path):
    """Whatever corpus a run says that it is of."""
    train_on(folder, tmp_path / "x", block_size=12)
    argv = [str(tmp_path / "x"), f"--data={folder}", "--prompt_tokens=5", "--new_tokens=5"]
    with pytest.raises(UserError, match="text"):
        eval_diversity.main([*argv, f"--out={tmp_path / 't'}"])
    assert not list(tmp_path.glob("t.*"))


@pytest.mark.parametrize("name", ORDERS)
def test_what_is_given_comes_first(name):
    order = Order(name, seed=1)
    paths = order.paths(3, np.arange(4), 12, 5)
    assert (paths[:, :5] == np.arange(5)).all()
    assert (paths[:, 5:] == 5 + order.paths(3, np.arange(4), 7)).all()


@pytest.mark.parametrize("name", [*ORDERS, "masked"])
def test_what_is_given_has_no_loss(folder, name):
    windows = Windows(open_tokens(folder / "train.bin"), 12)
    assert len(windows) == 40 and windows.given == 5
    source = TextSource(windows, TrueToken(), 4, seed=1)
    if name != "left_to_right":
        source = OrdersSource(source, model_of(name, length=12, vocab=len(TASK.words)).trunk, 1)
    assert source.positions_with_loss(0) == 4 * 7
    batch = source.batch(0, 0)
    rows = batch.targets.rows.view(-1).numpy()
    at = rows % 12
    if name == "masked":
        assert at.min() >= 5 and batch.targets.weights.sum().item() == pytest.approx(4 * 7)
        return
    first = 4 if name == "left_to_right" else 5
    assert np.array_equal(at.reshape(4, 7), np.tile(np.arange(first, first + 7), (4, 1)))
    places = at + 1 if batch.positions is None else batch.positions.flatten(0, 1)[rows, 1].numpy()
    assert (np.sort(places.reshape(4, 7)) == np.arange(5, 12)).all()
    known = {tuple(w) for w in windows.get(np.arange(40))[0].tolist()}
    for n in range(4):  # each target is the token that stands at its place
        told = dict(zip(places.reshape(4, 7)[n].tolist(), batch.targets.token.view(4, 7)[n].tolist()))
        assert tuple(told[i] for i in range(5, 12)) in {w[5:] for w in known}


def test_a_teacher_sees_what_is_given(folder):
    """Its perplexity of a prefix has that of the given tokens in it."""
    seen = []

    class Labels(TrueToken):
        def targets(self, indices, x, y):
            seen.append(y.clone())
            return super().targets(indices, x, y)

    windows = Windows(open_tokens(folder / "train.bin"), 12)
    batch = TextSource(windows, Labels(), 4, seed=1).batch(0, 0)
    assert (seen[0] >= 0).all() and len(batch.targets.ids) == 4 * 7


def text(sequences: int) -> np.ndarray:
    """Of 3 + 4 tokens each, and one more."""
    return np.random.default_rng(0).integers(0, 5, 7 * sequences + 1)


@torch.no_grad()
@pytest.mark.parametrize("trunk, order", [("left_to_right", ""), ("any", ""), ("any", "random")])
def test_what_is_given_is_not_scored(trunk, order):
    model, ids = model_of(trunk, length=7, vocab=5), text(5)
    found = score(model, plan(model.trunk.config, ids, order, 3) if order else in_sequences(ids, 7, 3))
    assert found.tokens == 5 * 4
    want = 0.0
    for n, row in enumerate(torch.from_numpy(ids[:35]).view(5, 7)):
        if not order:
            lp = log_p(model, row[None, :-1])[0, 2:]
            want -= lp.gather(1, row[3:, None]).sum().item()
            continue
        path = torch.from_numpy(Order(order).paths(0, np.array([n]), 7, 3)[0])
        own = torch.cat((torch.tensor([7]), path[:-1]))
        read = torch.cat((torch.tensor([5]), row[path[:-1]]))
        lp = log_p(model, read[None], torch.stack((own, path), 1)[None])[0]
        want -= lp.gather(1, row[path][:, None])[3:].sum().item()
    assert found.nll == pytest.approx(want, rel=1e-5)


@torch.no_grad()
def test_the_bound_does_not_hide_what_is_given():
    """Of one token after what is given it is the NLL itself."""
    model = model_of("masked", length=4, vocab=5)
    ids = np.random.default_rng(0).integers(0, 5, 13)
    rows = torch.from_numpy(ids[:12]).view(3, 4)
    hidden = torch.cat((rows[:, :3], torch.full((3, 1), 5)), 1)
    want = -log_p(model, hidden)[:, 3].gather(1, rows[:, 3:]).sum().item()
    found = score(model, plan(model.trunk.config, ids, "masked", 3))
    assert (found.nll, found.tokens) == (pytest.approx(want, rel=1e-5), 3)


def test_templates_and_questions_leave_what_is_given():
    rows = TASK.sample(6, np.random.default_rng(0))
    begun = templates(rows, 5)
    assert (begun[:, :5] == rows[:, :5]).all() and (begun[:, 5:] == FREE).all()
    for kind, share in product(("next", "middle", "random"), (0.3, 0.9)):
        q = questions(Sequences(TASK).log_probs, rows, share, kind, 5)
        known = q.text != FREE
        assert known[:, :5].all() and (known[:, 5:].sum(1) == round(share * 7)).all()
        assert (q.text[known] == rows[known]).all() and q.places.min() >= 5
        np.testing.assert_allclose(np.exp(q.log_p).sum(2), 1)


@torch.no_grad()
def test_the_middle_is_that_of_what_is_not_given():
    model, windows = model_of("left_to_right", length=9, vocab=5), text(4)[:27].reshape(3, 9)
    lp = log_p(model, torch.from_numpy(windows))
    want = -lp[:, 5].gather(1, torch.from_numpy(windows[:, 6:7])).mean().item() / np.log(2)
    assert middle_bits(asker(model), windows, 1, given=4)["left"] == pytest.approx(want, rel=1e-5)


def test_continued_from_what_is_given():
    model = model_of("left_to_right", length=7, vocab=5).float()
    begun = torch.from_numpy(templates(text(3)[:21].reshape(3, 7), 3))
    filled = continue_texts(asker(model), begun, torch.Generator().manual_seed(0))
    assert (filled.text[:, :3] == begun[:, :3]).all() and (filled.text[:, 3:] >= 0).all()
    assert filled.rank[0].tolist() == [0, 0, 0, 1, 2, 3, 4] and (filled.rounds, filled.passes) == (4, 4)
