"""A projection of a bounded rank is a plain one of the product of its factors."""

import math

import pytest
import torch
import torch.nn as nn

from config.defaults import TrainConfig
from heads import HEADS, Targets, make_head
from heads.projection import FactoredProjection
from model import build
from runtime.checkpoint import load_model
from runtime.optimizer import make_optimizer
from tests.conftest import TINY, train_in_process

V, C, N, RANK = 31, 8, 40, 3
SIZES = dict(vocab_size=V, block_size=8, n_layer=1, n_head=1, n_embd=C, dropout=0.0, head_args={})


def output(name="softmax", rank=RANK):
    torch.manual_seed(0)
    return make_head(name, V, nn.Parameter(torch.randn(64, C)), gain=1.5, head_rank=rank).double()


@pytest.fixture
def hidden():
    g = torch.Generator().manual_seed(1)
    return torch.randn(N, C, generator=g, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("name", ["softmax", "sigmoid", "harmonic"])
def test_it_is_its_formula(name, hidden):
    """The loss, its gradients and the distribution, by one row of W U D at a time."""
    oh, token = output(name), torch.arange(N) % V
    p = oh.projection
    w = torch.stack([(p.up.weight @ p.down.weight).T @ row for row in p.weight[:V]])
    h = hidden
    if oh.head.cosine:
        w, h = nn.functional.normalize(w), C**0.5 * nn.functional.normalize(hidden)
        oh.head.scale = 1.5 * C**0.5
    z = 1.5 * h @ w.T
    z = z if p.bias is None else z + p.bias
    want = oh.head.loss(z, Targets.single(token)).sum()
    loss, count = oh.loss(hidden, Targets.single(token))
    torch.testing.assert_close(loss, want)
    assert count == N
    inputs = (hidden, *oh.parameters())
    for got, expected in zip(torch.autograd.grad(loss, inputs), torch.autograd.grad(want, inputs)):
        torch.testing.assert_close(got, expected)
    with torch.no_grad():
        log_p = oh.log_probs(hidden, oh.draws(1, 0, torch.float64))
        torch.testing.assert_close(log_p, oh.head.log_probs(z))


def test_autocast_lowers_the_products_with_hidden_states_alone(hidden):
    """What is trained is what is scored, and the gradient of W U D is in float32, as that of W alone is."""
    oh = output().float()
    plain = oh.projection.draw()
    with torch.autocast("cpu", torch.bfloat16):
        lowered = oh.projection.draw()
        loss, _ = oh.loss(hidden.float(), Targets.single(torch.arange(N) % V))
    assert torch.equal(lowered.weight, plain.weight) and lowered.weight.dtype == torch.float32
    loss.backward()
    assert all(p.grad.dtype == torch.float32 for p in oh.parameters())


@pytest.mark.parametrize("rank", [1, RANK, C])
def test_its_log_p_has_the_rank(rank, hidden):
    oh = output(rank=rank)
    log_p = oh.log_probs(hidden, oh.draws(1, 0, torch.float64)).detach()
    logits = log_p - log_p.mean(1, keepdim=True)
    assert int(torch.linalg.matrix_rank(logits, rtol=1e-10)) == rank


@pytest.mark.parametrize("rank", [1, RANK, C])
def test_at_first_it_projects_onto_some_directions(rank):
    """All of them with the full rank: there the head begins as without it."""
    p = output(rank=rank).projection
    both = (p.up.weight @ p.down.weight).detach()
    torch.testing.assert_close(both @ both, both, rtol=0, atol=1e-6)
    assert both.trace().item() == pytest.approx(rank, abs=1e-4)
    if rank == C:
        torch.testing.assert_close(p.draw().weight, p.weight, rtol=0, atol=1e-5)


def test_muon_has_its_factors():
    model = build(SIZES | dict(head="softmax", head_rank=RANK))
    assert isinstance(model.head.projection, FactoredProjection)
    muon = make_optimizer(model, "muon", 0.001, (0.9, 0.99), 0.1, readout_lr=0.01).parts[1]
    factors = {model.head.projection.up.weight, model.head.projection.down.weight}
    assert factors <= {p for g in muon.param_groups for p in g["params"]}


@pytest.mark.parametrize(
    "flags, says",
    [
        (dict(n_embd=24, n_head=2, head_rank=25), "head_rank = 25: at most n_embd = 24, or 0 for"),
        (dict(head_rank=4, bayesian=True), "head_rank with bayesian: leave one of them out"),
        (dict(head_rank=-1), "head_rank = -1: must be at least 0"),
    ],
)
def test_what_cannot_be_is_refused(flags, says):
    with pytest.raises(ValueError, match=says):
        TrainConfig(name="factored", **flags).check()


@pytest.mark.parametrize("name", HEADS)
def test_every_head_can_have_it(name):
    TrainConfig(name="factored", head=name, head_rank=4).check()


def test_a_run_is_trained_and_loaded(token_folder, tmp_path):
    config = TrainConfig(**TINY | dict(name="factored", out_dir=str(tmp_path / "factored"), head_rank=2))
    assert train_in_process(config, token_folder) == 0
    model, ckpt = load_model(tmp_path / "factored")
    assert model.head.projection.down.out_features == 2 and math.isfinite(ckpt.progress["val_nll"])
