"""The teacher's proposals against a naive twin, the labels made of them, and the store that keeps them."""

import copy
import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import augment
from augment import (
    LabelSettings,
    LabelStore,
    Online,
    Proposals,
    Teacher,
    build_store,
    choose_positions,
    identity,
    make_targets,
    propose,
    store_path,
)
from common import device
from common.config import read
from common.errors import UserError
from data.batches import Windows
from data.tokens import open_tokens
from heads import HEADS
from tests.fixtures import VOCAB, prepare_folder
from train import TrainConfig

T = 16


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    """A token file of this module's own: the stores lie beside it."""
    folder = prepare_folder(tmp_path_factory.mktemp("augment") / f"bpe{VOCAB}", f"bpe{VOCAB}")
    return open_tokens(folder / "train.bin")


@pytest.fixture(scope="module")
def teacher(trained, tokens):
    return make_teacher(trained, tokens)


def make_teacher(path, tokens, block=T, **changes) -> Teacher:
    vocabulary = {key: tokens.info[key] for key in ("tokenizer", "fingerprint")}
    return Teacher(str(path), block_size=block, **vocabulary | changes)


@pytest.fixture(autouse=True)
def no_store_left(tokens):
    yield
    for path in tokens.path.parent.glob("*.labels-*"):
        path.unlink()


@torch.no_grad()
def naive_log_probs(teacher, x):
    """(B, T, V) log-softmax of the logits, all of them at once."""
    model = teacher.model
    return torch.log_softmax(model.trunk(x) @ model.trunk.wte.weight[:VOCAB].t(), -1)


def test_proposals_are_the_top_k_at_the_chosen_positions(teacher, tokens):
    indices = np.array([3, 0, 7])
    x, y = Windows(tokens, T).get(indices)
    p = propose(teacher, indices, x, y, LabelSettings(candidates=5, positions=0.5))
    assert p.positions.shape == (3, 8) and p.ids.shape == p.probs.shape == (3, 8, 5)
    lp = naive_log_probs(teacher, x)
    for b in range(3):
        for j, i in enumerate(p.positions[b]):
            values, ids = lp[b, i].exp().topk(5)
            assert p.ids[b, j].tolist() == ids.tolist()
            np.testing.assert_allclose(p.probs[b, j], values, rtol=1e-3)  # kept in float16


@torch.no_grad()
def brute_force(teacher, x, y, positions, ids):
    """The perplexity of each text up to a candidate, a forward pass each."""
    out = np.empty(ids.shape)
    for b, j, c in np.ndindex(*ids.shape):
        i = int(positions[b, j])
        text = torch.cat((x[b], y[b, -1:]))
        text[i + 1] = int(ids[b, j, c])
        text = text[: i + 2]
        out[b, j, c] = F.nll_loss(naive_log_probs(teacher, text[None, :-1])[0], text[1:]).exp()
    return out


def test_perplexity_threshold_against_brute_force(teacher, tokens):
    indices = np.array([2, 5])
    x, y = Windows(tokens, T).get(indices)
    every = propose(teacher, indices, x, y, LabelSettings(candidates=7, positions=6.0))
    ppl = brute_force(teacher, x, y, every.positions, every.ids)
    threshold = float(np.median(ppl)) * 1.0001
    kept = propose(teacher, indices, x, y, LabelSettings(7, 6.0, threshold))
    assert (kept.positions == every.positions).all() and (kept.probs == every.probs).all()
    assert 0.3 < (kept.ids < 0).mean() < 0.7
    np.testing.assert_array_equal(kept.ids, np.where(ppl > threshold, -1, every.ids))
    # each gap between neighbours as a threshold drops exactly those above: the values themselves agree
    exact = np.sort(ppl.ravel())
    for at in (5, 40, 70):
        cut = float(exact[at : at + 2].mean())
        assert (propose(teacher, indices, x, y, LabelSettings(7, 6.0, cut)).ids >= 0).sum() == at + 1


@torch.no_grad()
def test_a_teacher_with_exact_zeros_proposes_none_of_them(teacher, tokens):
    """And a true token that it rules out does not let all later candidates pass the threshold."""
    sparse = copy.deepcopy(teacher)
    sparse.model.head.head = HEADS["sparsemax"](VOCAB)
    sparse.model.trunk.ln_f.weight *= 4
    indices = np.array([2, 5])
    x, y = Windows(tokens, T).get(indices)
    lp = sparse.model.log_probs(x, sparse.draws)
    zeros = lp.gather(2, y[:, :, None]).isneginf()[:, :, 0]
    assert zeros.any()
    every = propose(sparse, indices, x, y, LabelSettings(candidates=40, positions=float(T)))
    assert (every.ids >= 0).any() and (every.ids < 0).any()
    assert ((every.probs > 0) == (every.ids >= 0)).all()
    kept = propose(sparse, indices, x, y, LabelSettings(40, float(T), 1e6))
    for b, j in np.ndindex(2, T):
        if zeros[b, : kept.positions[b, j]].any():  # the prefix has probability 0
            assert (kept.ids[b, j] < 0).all()


def test_positions_are_a_function_of_seed_and_window():
    s = LabelSettings(positions=0.25)
    together = choose_positions(np.arange(50), T, s)
    assert together.shape == (50, 4) and together.max() < T
    assert (np.diff(together.astype(int), axis=1) > 0).all()
    np.testing.assert_array_equal(choose_positions(np.array([31]), T, s)[0], together[31])
    assert not np.array_equal(
        choose_positions(np.arange(50), T, LabelSettings(positions=0.25, seed=1)), together
    )
    assert set(together.ravel()) == set(range(T))  # every position has its turn
    assert len({tuple(r) for r in together.tolist()}) > 25


def test_m_as_share_and_as_number():
    assert [LabelSettings(positions=p).count(16) for p in (0.5, 1.0, 0.25, 2.0, 16.0)] == [8, 16, 4, 2, 16]
    for positions, block in ((0.01, 16), (17.0, 16), (0.5, 70_000)):
        with pytest.raises(UserError):
            LabelSettings(positions=positions).count(block)
    for positions in ("0.0", "1.5", "nan"):
        with pytest.raises(UserError, match="positions"):
            read(TrainConfig, [f"--positions={positions}"])


# ---- labels ------------------------------------------------------------------------------------------------

Y = torch.tensor([[4, 5, 6], [7, 8, 9]])
PROPOSED = Proposals(
    np.array([[0, 2], [0, 1]], np.uint16),
    np.array([[[1, 4], [-1, 2]], [[3, -1], [8, 0]]]),
    np.array([[[0.5, 0.25], [0.5, 0.125]], [[0.75, 0.1], [0.5, 0.25]]], np.float16),
)


def test_hard_labels():
    t = make_targets(Y, PROPOSED, soft=False)
    assert t.ids.tolist() == [[4, 1, -1], [5, -1, -1], [6, -1, 2], [7, 3, -1], [8, -1, 0], [9, -1, -1]]
    assert t.values.tolist() == [[1, 1, 0], [1, 0, 0], [1, 0, 1], [1, 1, 0], [1, 0, 1], [1, 0, 0]]
    assert t.token.tolist() == Y.flatten().tolist()


def test_soft_labels():
    t = make_targets(Y, PROPOSED, soft=True)
    assert t.values.tolist() == [[1, 0.5, 0], [1, 0, 0], [1, 0, 0.125], [1, 0.75, 0], [1, 0, 0.25], [1, 0, 0]]


def test_labels_as_published():
    """Candidates replace the true token, which counts only if proposed; elsewhere there is no positive."""
    t = make_targets(Y, PROPOSED, False, keep_true=False)
    assert t.token.tolist() == Y.flatten().tolist()  # for scores, not for the loss
    assert t.ids[:, 1:].tolist() == [[1, -1], [-1, -1], [-1, 2], [3, -1], [-1, 0], [-1, -1]]
    assert t.values.tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 1], [0, 0, 0]]


# ---- the store ---------------------------------------------------------------------------------------------

SETTINGS = LabelSettings(candidates=6, positions=0.5, ppl_threshold=80.0)


def same(a, b) -> bool:
    return torch.equal(a.ids, b.ids) and torch.equal(a.values, b.values)


@pytest.mark.parametrize("settings", [SETTINGS, LabelSettings(4, 3.0), LabelSettings(3, 2.0, 80.0)])
def test_store_equals_online(teacher, tokens, settings):
    store, windows = build_store(tokens, teacher, T, settings), Windows(tokens, T)
    assert len(store.records) == len(windows)
    order = np.random.default_rng(0).permutation(len(windows))
    for indices in np.split(order, range(8, len(order), 8)):  # not the order and batch of the store
        x, y = windows.get(indices)
        stored, online = (s.proposals(indices, x, y) for s in (store, Online(teacher, settings)))
        assert same(make_targets(y, stored, soft=True), make_targets(y, online, soft=True))


def test_a_stopped_build_leaves_nothing_and_a_whole_one_is_opened(teacher, tokens, monkeypatch):
    calls = []

    def proposing(*args):
        calls.append(args[1][0])
        if len(calls) == 4:
            raise KeyboardInterrupt
        return propose(*args)

    monkeypatch.setattr(augment, "propose", proposing)
    with pytest.raises(KeyboardInterrupt):
        build_store(tokens, teacher, T, SETTINGS)
    assert not [*tokens.path.parent.glob("*.labels-*[!k]")]  # but the lock
    build_store(tokens, teacher, T, SETTINGS)
    assert calls[:5] == [0, 16, 32, 48, 0]
    calls.clear()
    build_store(tokens, teacher, T, SETTINGS)
    assert calls == []


OTHERS = dict(corpus="0" * 64, tokens=5, tokenizer="x", block_size=8, teacher="0" * 64, dtype="bfloat16")
OTHERS |= dict(candidates=7, positions=0.25, ppl_threshold=81.0, seed=1)


def test_a_store_of_something_else_is_never_opened(teacher, tokens):
    """It has another name, and is refused under this one."""
    want = identity(tokens, teacher, T, SETTINGS)
    path = build_store(tokens, teacher, T, SETTINGS).path
    assert want.keys() == OTHERS.keys() and path == store_path(tokens, want)
    for key, other in OTHERS.items():
        changed = want | {key: other}
        assert store_path(tokens, changed) != path
        with pytest.raises(ValueError, match=key):
            LabelStore(path, changed, VOCAB)
    path.with_suffix(".json").write_text(json.dumps(changed | {"windows": 1, "m": 8, "k": 6}))
    with pytest.raises(ValueError, match=key):
        build_store(tokens, teacher, T, SETTINGS)


@pytest.mark.parametrize("vocab, kind", [(65535, "<u2"), (65536, "<u4")])
def test_minus_one_has_a_place_of_its_own(vocab, kind):
    """The largest id of the store's integers stands for -1, so no token may be it."""
    dtype = augment.record_dtype(vocab, 2, 3)["ids"].base
    assert dtype == np.dtype(kind) and vocab - 1 < np.iinfo(dtype).max


# ---- teachers ----------------------------------------------------------------------------------------------


def test_teachers_that_do_not_fit(trained, tokens):
    for changes in (dict(fingerprint="other"), dict(block=17)):
        with pytest.raises(ValueError, match="teacher"):
            make_teacher(trained, tokens, **changes)


@pytest.mark.parametrize("dtype, settled", [("float32", "float32"), ("auto", "bfloat16")])
def test_the_command_builds_the_store_that_training_opens(trained, tokens, tiny, monkeypatch, dtype, settled):
    """With "auto": on a CPU that has bfloat16."""
    monkeypatch.setattr(device, "capabilities", lambda *_: {"avx512_bf16": True})
    monkeypatch.setattr(augment, "prepared", lambda *_: tokens.path.parent)
    config = tiny(head="sigmoid", labels="soft", teacher=str(trained), candidates=5, dtype=dtype)
    assert not augment.main([f"--{k}={v}" for k, v in vars(config).items()])
    teacher = make_teacher(trained, tokens, dtype=settled)
    assert store_path(tokens, identity(tokens, teacher, T, augment.label_settings(config))).is_file()
