"""Losses of later tokens beside a head's own are what their formulas say, and change no distribution."""

import math

import pytest
import torch
import torch.nn as nn

from config.defaults import TrainConfig
from heads import Targets, make_auxiliary, make_head
from heads.auxiliary import AUXILIARY, MuLoss, MultiToken, TokenOrder, upcoming
from model import build
from runtime.checkpoint import load_model
from runtime.errors import UserError
from runtime.optimizer import make_optimizer
from tests.fixtures import TINY, train_in_process

V, C, B, T = 31, 5, 3, 20
SIZES = dict(vocab_size=V, block_size=T, n_layer=1, n_head=1, n_embd=8, dropout=0.0, head_args={})


def text(seed=0) -> torch.Tensor:
    """Next tokens (B, T), of few kinds, so that they come again; two positions have no loss."""
    y = torch.randint(7, (B, T), generator=torch.Generator().manual_seed(seed))
    y[0, 4] = y[2, T - 1] = -1
    return y


@pytest.fixture
def hidden():
    g = torch.Generator().manual_seed(1)
    return torch.randn(B, T, C, generator=g, dtype=torch.float64, requires_grad=True)


def output(name="softmax", **beside):
    torch.manual_seed(0)
    return make_head(name, V, nn.Parameter(torch.randn(64, C)), **beside).double()


def same(loss, want, inputs):
    torch.testing.assert_close(loss, want)
    for got, expected in zip(*(torch.autograd.grad(x, inputs, allow_unused=True) for x in (loss, want))):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("name, beside", [("softmax", {"gain": 2.0}), ("gs_softmax_f1", {})])
def test_multi_token_is_its_formula(name, beside, hidden, kept):
    oh, loss, y = output(name, **beside), MultiToken(V, C, weight=0.7, tokens=4).double(), text()
    want = torch.zeros((), dtype=torch.float64)
    for b in range(B):
        for t in range(T):
            for k, each in enumerate(loss.maps, 1):
                if t + k < T and y[b, t] >= 0 and y[b, t + k] >= 0:
                    z = oh.gain * oh.projection.weight[:V] @ (hidden[b, t] + each.weight @ hidden[b, t])
                    z = z if oh.projection.bias is None else z + oh.projection.bias
                    want = want - 0.7 / 3 * oh.head.log_probs(z[None])[0, y[b, t + k]]
    targets = Targets.single(y)
    got = loss(hidden, targets.kept() if kept else targets, oh, None)
    same(got, want, (hidden, *oh.parameters(), *loss.parameters()))


@pytest.mark.parametrize("kept", [False, True])
def test_token_order_is_its_formula(hidden, kept):
    """By the definition: softmax over V of window - d where the token comes, -inf elsewhere."""
    oh, loss, y = output(gain=2.0), TokenOrder(V, C, weight=0.7).double(), text()
    want = torch.zeros((), dtype=torch.float64)
    for b in range(B):
        for t in range(T):
            if y[b, t] < 0:
                continue
            score = torch.full((V,), -math.inf, dtype=torch.float64)
            for d in reversed(range(T - t)):
                if y[b, t + d] >= 0:
                    score[y[b, t + d]] = T - d
            log_p = torch.log_softmax(2.0 * loss.projection.weight @ hidden[b, t], 0)
            want = want - 0.7 * torch.softmax(score, 0) @ log_p
    targets = Targets.single(y)
    got = loss(hidden, targets.kept() if kept else targets, oh, None)
    torch.testing.assert_close(got, want, rtol=3e-7, atol=0)  # q is of 16 tokens, in float32
    inputs = (hidden, loss.projection.weight)
    for a, b in zip(torch.autograd.grad(got, inputs), torch.autograd.grad(want, inputs)):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("beside", [{}, {"bayesian": True}])
def test_mu_loss_is_its_formula(beside, hidden, kept):
    """Of the tokens alone, not of the padding; once for each position that has a loss."""
    oh, loss, y = output(**beside), MuLoss(V, C, weight=0.7), text()
    mean = sum(oh.projection.weight[v] for v in range(V)) / V
    want = 0.7 * (mean @ mean) * (y >= 0).sum()
    targets = Targets.single(y)
    got = loss(hidden, targets.kept() if kept else targets, oh, None)
    same(got, want, (oh.projection.weight,))


def test_what_comes_next():
    y = torch.tensor([[3, 4, -1, 5]])
    want = [[[3, 4, -1], [4, -1, 5], [-1, -1, -1], [5, -1, -1]]]
    for targets in (Targets.single(y), Targets.single(y).kept()):
        assert upcoming(targets, y.shape, 3).tolist() == want


@pytest.mark.parametrize("name", AUXILIARY)
def test_it_adds_to_the_loss_of_training_alone(name):
    """The same seed gives the same trunk and head; the distribution is theirs, the loss is more."""
    models = []
    for auxiliary in ("", name):
        torch.manual_seed(0)
        args = {"weight": 1e5} if auxiliary == "mu_loss" else {}  # at first its mean is of 31 random rows
        models.append(build(SIZES | dict(head="sigmoid", auxiliary=auxiliary, auxiliary_args=args)))
    y = text()
    x = y.clamp(min=0)
    torch.testing.assert_close(models[0].log_probs(x), models[1].log_probs(x), rtol=0, atol=0)
    (alone, count), (more, same_count) = (m(x, y) for m in models)
    assert more > alone + 1 and count == same_count == (y >= 0).sum()
    more.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in models[1].auxiliary.parameters())
    models[1].auxiliary.weight = 0.0
    assert models[1](x, y)[0] == alone


def test_the_projection_of_the_token_order_has_the_readouts_rate():
    model = build(SIZES | dict(head="softmax", auxiliary="token_order"))
    optimizer = make_optimizer(model, "muon", 0.001, (0.9, 0.99), 0.1, readout_lr=0.01)
    own = model.auxiliary.projection.weight
    (group,) = [g for g in optimizer.param_groups if any(p is own for p in g["params"])]
    assert group["scale"] == 10


def test_muon_has_the_maps_of_hidden_states_too():
    model = build(SIZES | dict(head="softmax", auxiliary="multi_token"))
    maps = {*model.auxiliary.maps}
    muon = make_optimizer(model, "muon", 0.001, (0.9, 0.99), 0.1).parts[1]
    assert {m.weight for m in maps} <= {p for g in muon.param_groups for p in g["params"]}


@pytest.mark.parametrize(
    "flags, says",
    [
        (dict(auxiliary="mtp"), "auxiliary = 'mtp': use one of multi_token, token_order, mu_loss"),
        (dict(auxiliary="multi_token", auxiliary_args={"tokens": 1}), "tokens = 1: the next 2 to 16"),
        (dict(auxiliary="multi_token", auxiliary_args={"n": 4}), "does not take auxiliary_args"),
        (
            dict(auxiliary="multi_token", auxiliary_args={"tokens": 9}, block_size=8),
            "block_size = 8: give fewer",
        ),
        (dict(auxiliary="token_order", auxiliary_args={"weight": -1.0}), "weight = -1.0"),
        (dict(auxiliary="token_order", auxiliary_args={"weight": "nan"}), "weight = 'nan': must be a number"),
        (dict(auxiliary_args={"weight": 1.0}), "without auxiliary"),
    ],
)
def test_what_cannot_be_is_refused(flags, says):
    with pytest.raises(ValueError, match=says):
        TrainConfig(name="ahead", **flags).check()


@pytest.mark.parametrize("name", AUXILIARY)
def test_a_run_is_trained_resumed_and_loaded(name, token_folder, tmp_path):
    config = TrainConfig(**TINY | dict(name="ahead", out_dir=str(tmp_path / "ahead"), auxiliary=name))
    assert train_in_process(config, token_folder) == 0
    config.lr_decay_steps = config.max_steps
    config.resume, config.max_steps = True, config.max_steps + 2
    assert train_in_process(config, token_folder) == 0
    model, ckpt = load_model(tmp_path / "ahead")
    assert type(model.auxiliary) is AUXILIARY[name] and math.isfinite(ckpt.progress["val_nll"])


def test_mu_loss_is_refused_where_other_rows_make_the_logits():
    inside = dict(head="stop_gradient", head_args={"of": "am_softmax"})
    for other in (dict(head="am_softmax"), inside):
        with pytest.raises(UserError, match="no head on cosines"):
            TrainConfig(name="centred", auxiliary="mu_loss", **other).check()


def test_without_a_name_there_is_none():
    assert make_auxiliary("", V, C, T) is None


def test_a_learnt_gain_is_that_of_the_distribution_that_is_scored(hidden):
    oh, loss = output(gain=2.0, learn_gain=True), TokenOrder(V, C).double()
    loss(hidden, Targets.single(text()), oh, None).backward()
    assert oh.log_gain.grad is None
