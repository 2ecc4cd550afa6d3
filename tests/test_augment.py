"""The teacher's proposals against a naive twin, the labels made of them, and the store that keeps them."""

import copy
import hashlib

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import augment
from augment import Teacher, draw_candidates, propose
from common import device
from common.config import read
from common.errors import UserError
from data.batches import Windows
from data.labels import (
    FILE,
    LabelStore,
    Proposals,
    choose_positions,
    count_positions,
    fingerprint,
    identity,
    make_targets,
    record_dtype,
    store_folder,
)
from data.tokens import open_tokens
from heads import HEADS
from tests.fixtures import TINY, VOCAB, chi_square, prepare_folder, train_in_process
from train import TrainConfig
from training.run import Run, load_model

T = TINY["block_size"]


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    """A token file of this module's own: the stores lie beside it."""
    folder = prepare_folder(tmp_path_factory.mktemp("augment") / f"bpe{VOCAB}", f"bpe{VOCAB}")
    return open_tokens(folder / "train.bin")


@pytest.fixture(scope="module")
def taught(trained):
    """taught(**changes) -> the configuration of a student of `trained`."""
    known = TINY | dict(head="sigmoid", labels="soft", teacher=str(trained), candidates=5)
    return lambda **changes: TrainConfig(**known | changes)


@pytest.fixture(scope="module")
def teacher(taught, tokens):
    return Teacher(taught(), tokens)


@torch.no_grad()
def naive_log_probs(teacher, x):
    """(B, T, V) log-softmax of the logits, all of them at once."""
    model = teacher.model
    return torch.log_softmax(model.trunk(x) @ model.trunk.wte.weight[:VOCAB].t(), -1)


def test_proposals_are_the_top_k_at_the_chosen_positions(teacher, taught, tokens):
    indices = np.array([3, 0, 7])
    x, y = Windows(tokens, T).get(indices)
    p = propose(teacher, indices, x, y, taught())
    assert p.positions.shape == (3, 8) and p.ids.shape == p.values.shape == (3, 8, 5)
    lp = naive_log_probs(teacher, x)
    for b in range(3):
        for j, i in enumerate(p.positions[b]):
            values, ids = lp[b, i].exp().topk(5)
            assert p.ids[b, j].tolist() == ids.tolist()
            np.testing.assert_allclose(p.values[b, j], values, rtol=1e-3)  # kept in float16


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


def test_perplexity_threshold_against_brute_force(teacher, taught, tokens):
    indices = np.array([2, 5])
    x, y = Windows(tokens, T).get(indices)
    how = lambda ppl: taught(candidates=7, positions=6.0, ppl_threshold=ppl)
    under = lambda ppl: propose(teacher, indices, x, y, how(ppl))
    every = under(0.0)
    ppl = brute_force(teacher, x, y, every.positions, every.ids)
    threshold = float(np.median(ppl)) * 1.0001
    kept = under(threshold)
    assert (kept.positions == every.positions).all() and (kept.values == every.values).all()
    assert 0.3 < (kept.ids < 0).mean() < 0.7
    np.testing.assert_array_equal(kept.ids, np.where(ppl > threshold, -1, every.ids))
    # each gap between neighbours as a threshold drops exactly those above: the values themselves agree
    exact = np.sort(ppl.ravel())
    for at in (5, 40, 70):
        assert (under(float(exact[at : at + 2].mean())).ids >= 0).sum() == at + 1


@torch.no_grad()
def test_a_teacher_with_exact_zeros_proposes_none_of_them(teacher, taught, tokens):
    """And a true token that it rules out does not let all later candidates pass the threshold."""
    sparse = copy.deepcopy(teacher)
    sparse.model.head.head = HEADS["sparsemax"](VOCAB)
    sparse.model.trunk.ln_f.weight *= 4
    indices = np.array([2, 5])
    x, y = Windows(tokens, T).get(indices)
    lp = sparse.model.log_probs(x, sparse.draws)
    zeros = lp.gather(2, y[:, :, None]).isneginf()[:, :, 0]
    assert zeros.any()
    for kind in ("drawn", "top"):
        every = propose(sparse, indices, x, y, taught(candidates=40, positions=float(T), proposals=kind))
        assert (every.ids >= 0).any() and (every.ids < 0).any()
        assert ((every.values > 0) == (every.ids >= 0)).all()
        at = torch.from_numpy(every.ids).clamp(min=0)
        assert not lp.gather(2, at).isneginf()[torch.from_numpy(every.ids) >= 0].any()
    kept = propose(sparse, indices, x, y, taught(candidates=40, positions=float(T), ppl_threshold=1e6))
    for b, j in np.ndindex(2, T):
        if zeros[b, : kept.positions[b, j]].any():  # the prefix has probability 0
            assert (kept.ids[b, j] < 0).all()


def test_positions_are_a_function_of_seed_and_window(taught):
    c = taught(positions=0.25)
    together = choose_positions(np.arange(50), c)
    assert together.shape == (50, 4) and together.max() < T
    assert (np.diff(together.astype(int), axis=1) > 0).all()
    np.testing.assert_array_equal(choose_positions(np.array([31]), c)[0], together[31])
    assert not np.array_equal(choose_positions(np.arange(50), taught(positions=0.25, seed=1)), together)
    assert set(together.ravel()) == set(range(T))  # every position has its turn
    assert len({tuple(r) for r in together.tolist()}) > 25


def test_m_as_share_and_as_number(taught):
    assert [count_positions(taught(positions=p)) for p in (0.5, 1.0, 0.25, 2.0, 16.0)] == [8, 16, 4, 2, 16]
    for positions, block in ((0.01, 16), (17.0, 16), (0.5, 70_000)):
        with pytest.raises(UserError):
            count_positions(taught(positions=positions, block_size=block))
    for positions in ("0.0", "1.5", "nan"):
        with pytest.raises(UserError, match="positions"):
            read(TrainConfig, [f"--positions={positions}"])


# ---- drawn proposals ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many(teacher, taught, tokens):
    """The labels of one window with 12 draws at each position, 2,000 times (2000 T, 13), and with all V
    tokens; p (T, V) and the true tokens (T,)."""
    x, y = Windows(tokens, T).get(np.array([4]))
    times, c = np.arange(2000), dict(positions=float(T))
    repeated = [t.expand(len(times), -1).contiguous() for t in (x, y)]
    drawn = propose(teacher, times, *repeated, taught(**c, candidates=12, proposals="drawn"))
    every = propose(teacher, times[:1], x, y, taught(**c, candidates=VOCAB))
    labels = make_targets(repeated[1], drawn, soft=True), make_targets(y, every, soft=True)
    return *labels, naive_log_probs(teacher, x)[0].exp().double(), y[0]


def dense(targets) -> torch.Tensor:
    """The labels of all V tokens, (N, V)."""
    kept = targets.values.double() * (targets.ids >= 0)
    return torch.zeros(len(kept), VOCAB).double().scatter_add_(1, targets.ids.clamp(min=0).long(), kept)


def test_drawn_labels_have_the_mean_p(many):
    """The true token's label is 1; the counts of the others fit p, and add up to k in each draw."""
    drawn, _, p, y = many
    labels = dense(drawn).view(-1, T, VOCAB)
    for at in range(T):
        rest = p[at].clone()
        rest[y[at]] = 0
        counts = labels[:, at] * 12 / rest.sum()
        assert (counts[:, y[at]] * rest.sum() / 12 == 1).all()
        counts[:, y[at]] = 0
        torch.testing.assert_close(counts, counts.round(), atol=0.01, rtol=0)  # kept in float16
        np.testing.assert_allclose(counts.sum(1), 12, atol=0.01)
        assert chi_square(counts.round().sum(0).numpy(), (rest / rest.sum()).numpy()) < 5
    assert len({tuple(row) for row in drawn.ids.view(-1, T * 13)[:9].tolist()}) == 9


@pytest.mark.parametrize("name", ["sigmoid", "soft_targets"])
def test_the_gradient_of_drawn_labels_has_the_mean_of_full_distillation(many, name):
    """In each coordinate of the hidden states, in standard errors."""
    drawn, every, *_ = many
    head, rng = HEADS[name](VOCAB), torch.Generator().manual_seed(0)
    hidden, readout = (torch.randn(n, 8, generator=rng) for n in (T, VOCAB))

    def gradient(targets) -> torch.Tensor:
        h = hidden.repeat(len(targets.ids) // T, 1).requires_grad_()
        loss = head.loss(h @ readout.t(), targets.part(0, len(targets.ids))).sum()
        return torch.autograd.grad(loss, h)[0].double().view(-1, T, 8)

    each, (full,) = gradient(drawn), gradient(every)
    error = each.std(0) / len(each) ** 0.5
    z = (each.mean(0) - full) / error
    assert z.abs().max() < 5 and 0.6 < z.square().mean() < 1.5
    # the twelve likeliest are far from it
    top = gradient(every._replace(values=every.values * (torch.arange(VOCAB + 1) < 13)))
    assert ((top[0] - full) / error).abs().max() > 20


def test_a_certain_teacher_draws_nothing():
    log_p = torch.tensor([[0.0, -torch.inf, -torch.inf], [-torch.inf, 0.0, -torch.inf]])
    log_w, ids = draw_candidates(log_p, torch.tensor([0, 0]), torch.rand(2, 4, dtype=torch.double), 2)
    assert log_w.tolist() == [[-torch.inf] * 2, [0.0, -torch.inf]] and ids[1, 0] == 1


# ---- labels ------------------------------------------------------------------------------------------------


Y = torch.tensor([[4, 5, 6], [7, 8, 9]])
PROPOSED = Proposals(
    np.array([[0, 2], [0, 1]], np.uint16),
    np.array([[[1, 4], [-1, 2]], [[3, -1], [8, 0]]]),
    np.array([[[0.5, 0.25], [0.5, 0.125]], [[0.75, 0.1], [0.5, 0.25]]], np.float16),
)


def test_labels_by_hand():
    """Hard, soft and as published: there candidates replace the true token, which counts only if proposed."""
    t = make_targets(Y, PROPOSED, soft=False)
    assert t.ids.tolist() == [[4, 1, -1], [5, -1, -1], [6, -1, 2], [7, 3, -1], [8, -1, 0], [9, -1, -1]]
    assert t.values.tolist() == [[1, 1, 0], [1, 0, 0], [1, 0, 1], [1, 1, 0], [1, 0, 1], [1, 0, 0]]
    soft = make_targets(Y, PROPOSED, soft=True).values.tolist()
    assert soft == [[1, 0.5, 0], [1, 0, 0], [1, 0, 0.125], [1, 0.75, 0], [1, 0, 0.25], [1, 0, 0]]
    published = make_targets(Y, PROPOSED, soft=False, keep_true=False)
    assert published.ids.tolist() == t.ids.tolist()  # the true token for scores, not for the loss
    assert published.values.tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 1], [0, 0, 0]]


# ---- the store ---------------------------------------------------------------------------------------------


def wanted(tokens, c) -> dict:
    run = Run(c.teacher)
    return identity(tokens, c, fingerprint(run.record, run.weights()))


def built(tokens, c) -> LabelStore:
    made_of = wanted(tokens, c)
    return LabelStore(augment.build_store(tokens, c, made_of, "cpu"), made_of, VOCAB)


KINDS = {"candidates": 4, "positions": 3.0}, {"ppl_threshold": 80.0}, {"proposals": "drawn", "candidates": 12}


@pytest.mark.parametrize("changes", KINDS)
def test_a_store_has_what_the_teacher_proposes(teacher, taught, tokens, changes):
    """In another order and in other batches."""
    c, windows = taught(**changes), Windows(tokens, T)
    store = built(tokens, c)
    assert len(store.records) == len(windows)
    order = np.random.default_rng(0).permutation(len(windows))
    for indices in np.split(order, range(8, len(order), 8)):
        x, y = windows.get(indices)
        want = make_targets(y, propose(teacher, indices, x, y, c), soft=True)
        assert all(map(torch.equal, store.targets(indices, x, y)[:2], want[:2]))


def test_a_stopped_build_leaves_nothing_and_a_whole_one_is_opened(taught, tokens, monkeypatch):
    calls, c = [], taught(seed=5)

    def proposing(*args):
        calls.append(args[1][0])
        if len(calls) == 4:
            raise KeyboardInterrupt
        return propose(*args)

    monkeypatch.setattr(augment, "propose", proposing)
    with pytest.raises(KeyboardInterrupt):
        built(tokens, c)
    assert not [*store_folder(tokens, wanted(tokens, c)).iterdir()]
    built(tokens, c)
    assert calls[:5] == [0, 16, 32, 48, 0]
    calls.clear()
    built(tokens, c)
    assert calls == []


OTHERS = dict(corpus="0" * 64, tokens=5, tokenizer="x", block_size=8, teacher="0" * 64, dtype="bfloat16")
OTHERS |= dict(candidates=7, positions=0.25, ppl_threshold=81.0, seed=1, windows=9, m=4, k=3)


def test_a_store_of_something_else_is_never_opened(taught, tokens):
    """It has another name, and is refused under this one."""
    c = taught()
    want, folder = wanted(tokens, c), built(tokens, c).folder
    assert want.keys() == OTHERS.keys() and folder == store_folder(tokens, want)
    assert store_folder(tokens, wanted(tokens, taught(proposals="drawn"))) != folder
    for key, other in OTHERS.items():
        assert store_folder(tokens, want | {key: other}) != folder
        with pytest.raises(UserError, match=key):
            LabelStore(folder, want | {key: other}, VOCAB)


@pytest.mark.parametrize("vocab, kind", [(65535, "<u2"), (65536, "<u4")])
def test_minus_one_has_a_place_of_its_own(vocab, kind):
    """The largest id of the store's integers stands for -1, so no token may be it."""
    dtype = record_dtype(vocab, 2, 3)["ids"].base
    assert dtype == np.dtype(kind) and vocab - 1 < np.iinfo(dtype).max


# ---- teachers, and training --------------------------------------------------------------------------------


def test_teachers_that_do_not_fit(taught, tokens):
    other = tokens._replace(info=tokens.info | {"fingerprint": "other"})
    for c, text in ((taught(), other), (taught(block_size=17), tokens)):
        with pytest.raises(UserError, match="teacher"):
            Teacher(c, text)


def test_the_fingerprint_is_that_of_the_loaded_model(tokens, tiny, monkeypatch):
    """As an earlier version took it, whose runs have it in their config.json."""
    assert train_in_process(tiny(max_steps=1, head="sigmoid", gain=0.5), tokens.path.parent) == 0
    model, run = load_model(tiny().out_dir)
    head, gain = model.head.head, model.head.fixed_gain
    settings = sorted((k, v) for k, v in vars(head).items() if isinstance(v, (int, float, str)))
    about = repr((model.trunk.config, type(head).__name__, settings))
    digest = hashlib.sha256((about + f" gain {gain}" * (gain != 1)).encode())
    for name, p in sorted(model.state().items()):
        digest.update(name.encode() + p.numpy().tobytes())
    assert fingerprint(run.record, run.weights()) == digest.hexdigest()


@pytest.mark.parametrize("dtype, chosen", [("float32", "float32"), ("auto", "bfloat16")])
def test_training_opens_what_the_command_builds(taught, tokens, tmp_path, monkeypatch, dtype, chosen):
    """With "auto": on a CPU that has bfloat16."""
    monkeypatch.setattr(device, "capabilities", lambda *_: {"avx512_bf16": True})
    monkeypatch.setattr(augment, "prepared", lambda *_: tokens.path.parent)
    c = taught(dtype=dtype, out_dir=str(tmp_path / "out"), max_steps=1, seed=7)
    assert not augment.main([f"--{k}={v}" for k, v in vars(c).items()])
    assert (store_folder(tokens, wanted(tokens, taught(dtype=chosen, seed=7))) / FILE).is_file()
    monkeypatch.setattr(augment, "build_store", lambda *_: pytest.fail("built a second time"))
    assert train_in_process(c, tokens.path.parent) == 0
