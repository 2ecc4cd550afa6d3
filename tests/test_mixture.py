"""A mixture of softmaxes is what its formula says: value, gradients and distribution."""

import math

import pytest
import torch
import torch.nn as nn

from config.defaults import TrainConfig
from heads import MixtureHead, Targets, make_head
from runtime.checkpoint import load_model
from tests.conftest import TINY, train_in_process

V, C, N, K = 31, 5, 12, 3


def mixture(name="softmax", **beside) -> MixtureHead:
    torch.manual_seed(0)
    oh = make_head(name, V, nn.Parameter(torch.randn(64, C)), mixture=K, **beside)
    assert isinstance(oh, MixtureHead)
    return oh.double()


def by_formula(oh: MixtureHead, hidden: torch.Tensor) -> torch.Tensor:
    """log p (N, V) of one row and one component at a time."""
    weight, gain = oh.projection.weight[:V], oh.gain
    if oh.head.cosine:
        oh.head.scale = gain * C**0.5
        weight = nn.functional.normalize(weight)
    rows = []
    for h in hidden:
        pi = torch.softmax(oh.prior @ h, 0)
        p = 0
        for k in range(K):
            context = torch.tanh(oh.contexts[k].weight @ h + oh.contexts[k].bias)
            if oh.head.cosine:
                context = nn.functional.normalize(context, dim=0) * C**0.5
            z = gain * weight @ context
            z = z if oh.projection.bias is None else z + oh.projection.bias
            p = p + pi[k] * oh.head.log_probs(z[None])[0].exp()
        rows.append(p.log())
    return torch.stack(rows)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "name, beside",
    [
        ("softmax", {}),
        ("softmax", {"gain": 2.5, "learn_gain": True}),
        ("gs_softmax_f1", {}),
        ("harmonic", {"gain": 0.5}),
    ],
)
def test_it_is_its_formula(name, beside, weighted):
    oh, g = mixture(name, **beside), torch.Generator().manual_seed(1)
    hidden = torch.randn(N, C, generator=g, dtype=torch.float64, requires_grad=True)
    targets = Targets.single(torch.randint(V, (N,), generator=g))
    w = torch.rand(N, generator=g, dtype=torch.float64) if weighted else torch.ones(N, dtype=torch.float64)
    log_p = by_formula(oh, hidden)
    want = -(w * log_p.gather(1, targets.ids).squeeze(1)).sum()
    loss, count = oh.loss(hidden, targets._replace(weights=w) if weighted else targets)
    inputs = (hidden, *oh.parameters())
    torch.testing.assert_close(loss, want)
    assert count == N
    for got, expected in zip(torch.autograd.grad(loss, inputs), torch.autograd.grad(want, inputs)):
        torch.testing.assert_close(got, expected)
    draws = oh.draws(1, 0, torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(oh.log_probs(hidden, draws), log_p)
        blocks = [(rows, block) for rows, block in oh.log_prob_blocks(hidden, draws)]
        assert [n for rows, _ in blocks for n in range(rows.start, rows.stop)] == [*range(N)]
        torch.testing.assert_close(torch.cat([block for _, block in blocks]), log_p)


def test_its_log_p_has_no_rank_of_the_width():
    """What it is for: log p of one softmax has rank C + 1 at most over all contexts."""
    hidden = 3 * torch.randn(4 * V, C, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    one = make_head("softmax", V, nn.Parameter(torch.randn(64, C))).double()
    ranks = []
    for oh in (one, mixture()):
        log_p = oh.log_probs(hidden, oh.draws(1, 0, torch.float64)).detach()
        ranks.append(int(torch.linalg.matrix_rank(log_p, rtol=1e-10)))
    assert ranks[0] <= C + 1 < ranks[1] == V


def test_a_batch_without_a_loss_has_none():
    loss, count = mixture().float().loss(torch.randn(N, C), Targets.single(torch.full((N,), -1)))
    assert (loss.item(), count) == (0, 0)


def test_weights_are_drawn_once_for_all_components():
    oh = mixture(bayesian=True).float()
    hidden, draws = torch.randn(N, C), oh.draws(4, 0)
    with torch.no_grad():
        log_p, each = oh.log_probs(hidden, draws), [oh.log_probs(hidden, [d]).exp() for d in draws]
        torch.testing.assert_close(log_p.exp(), sum(each) / 4)
    loss, _ = oh.loss(hidden, Targets.single(torch.arange(N)), torch.Generator().manual_seed(3))
    loss.backward()
    assert loss.isfinite() and all(p.grad.isfinite().all() for p in oh.parameters() if p.grad is not None)


@pytest.mark.parametrize(
    "flags, says",
    [
        (dict(mixture=2, head="sparsemax"), "mixture = 2 of Sparsemax: only softmax and its links"),
        (dict(mixture=2, head="label_smoothing"), "mixture = 2 of LabelSmoothing"),
        (dict(mixture=65), "mixture = 65: use 1 for no mixture, or 2 to 64"),
        (dict(mixture=0), "mixture = 0"),
    ],
)
def test_what_cannot_be_mixed_is_refused(flags, says):
    with pytest.raises(ValueError, match=says):
        TrainConfig(name="mixed", **flags).check()


def test_a_run_is_trained_and_loaded(token_folder, tmp_path):
    config = TrainConfig(**TINY | dict(name="mixed", out_dir=str(tmp_path / "mixed"), mixture=2))
    assert train_in_process(config, token_folder) == 0
    model, ckpt = load_model(tmp_path / "mixed")
    assert isinstance(model.head, MixtureHead) and math.isfinite(ckpt.progress["val_nll"])
