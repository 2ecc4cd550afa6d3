"""The lab's heads: the contract of every head, their formulas, and what holds for some."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import train
from heads import linear_loss, make_head, named_head
from labs.more_heads.heads import HEADS
from tests.head_contract import *  # noqa: F403
from tests.head_contract import (
    C,
    V,
    assert_equal,
    dense,
    each,
    inputs,
    link,
    objective,
    of,
    onehot,
    random_targets,
)


def unlikelihood(log_p, y, z, alpha=1.0):
    avoid = (1 - log_p.exp()).clamp(min=1e-5).log() * (dense(y, z) < 0)
    return -of(log_p, y) - alpha * avoid.sum(1)


FORMULAS = {
    "softcap": link(lambda z, cap=30.0: cap * torch.tanh(z / cap)),
    "sigmoid_cap": link(lambda z, cap=23.0, shift=5.0: cap * torch.sigmoid((z + shift) / 7.5)),
    "stablemax": link(lambda z: torch.where(z < 0, -(1 - z.clamp(max=0)).log(), z.clamp(min=0).log1p())),
    "harmonic": link(lambda z, scale: -scale * (1 - z / scale).clamp(min=1e-4).log()),
    "z_loss": objective(lambda log_p, y, z, alpha=1e-4: -of(log_p, y) + alpha * z.logsumexp(1) ** 2),
    "power_loss": objective(lambda log_p, y, z, alpha=0.5: (1 - (alpha * of(log_p, y)).exp()) / alpha),
    "brier": objective(lambda log_p, y, z: ((log_p.exp() - onehot(y, z)) ** 2).sum(1)),
    "spherical": objective(lambda log_p, y, z: 1 - of(log_p.exp(), y) / log_p.exp().norm(dim=1)),
    "confidence_penalty": objective(
        lambda log_p, y, z, beta=0.1: -of(log_p, y) + beta * (log_p.exp() * log_p).sum(1)
    ),
    "unlikelihood": objective(unlikelihood),
}
VARIANTS = [("softcap", {"cap": 12.0}), ("sigmoid_cap", {"cap": 30.0, "shift": 0.0})]
VARIANTS += [("z_loss", {"alpha": 0.1}), ("power_loss", {"alpha": 0.2})]
VARIANTS += [("confidence_penalty", {"beta": 0.5}), ("unlikelihood", {"alpha": 0.3})]
pytest_generate_tests = each(FORMULAS, VARIANTS, not_proper=("confidence_penalty", "power_loss"))


def test_every_head_has_a_formula():
    assert FORMULAS.keys() == HEADS.keys()


def test_harmonic_is_of_distances_on_the_sphere():
    """p ~ |h - w|^-2n of vectors of length 1 with n = gain sqrt(C), inside `stop_gradient`, too."""
    torch.manual_seed(0)
    hidden, weight, targets = torch.randn(9, C), nn.Parameter(torch.randn(64, C)), random_targets(9)
    distances = torch.cdist(F.normalize(hidden), F.normalize(weight[:V]))
    want = F.log_softmax(-2 * 1.7 * math.sqrt(C) * distances.log(), 1)
    for name, args in (("harmonic", {}), ("stop_gradient", {"of": "harmonic"})):
        oh = make_head(name, V, weight, args, gain=1.7)
        torch.testing.assert_close(oh.log_probs(hidden, oh.draws(1, 0)), want, rtol=1e-4, atol=1e-4)
        loss = oh.loss(hidden, targets)[0]
        if name == "harmonic":
            torch.testing.assert_close(loss, F.nll_loss(want, targets.token, reduction="sum"))
        with pytest.raises(ValueError):
            make_head(name, V, weight, args, learn_gain=True)
    with pytest.raises(ValueError, match="Harmonic"):
        linear_loss(hidden, weight[:V], targets.token, "harmonic", gain=torch.tensor(2.0, requires_grad=True))


def test_labels_of_unlikelihood_against_a_loop():
    """Welleck et al. 2019, eq. 5 over the context's distinct tokens without the true one: the labels.

    A label is at its distance from the position; of a token that comes again the nearest one counts.
    """
    B, T = 3, 12
    g = torch.Generator().manual_seed(0)
    text = torch.randint(6, (B, T + 1), generator=g)  # few tokens, so that they come again
    x, y = text[:, :-1], text[:, 1:]
    for window in (0, 4, 50):
        targets = HEADS["unlikelihood"](V, window=window).targets(x, y)
        for b in range(B):
            for i in range(T):
                row, token, context = b * T + i, y[b, i].item(), []
                ids, values = [token], [1.0]
                for distance in range(min(window or T, T)):
                    c = x[b, i - distance].item() if distance <= i else -1
                    new = c not in (-1, token, *context)
                    context += [c] * new
                    ids.append(c if new else -1)
                    values.append(-1.0 if new else 0.0)
                assert targets.ids[row].tolist() == ids and targets.values[row].tolist() == values
        assert targets.ids.dtype == torch.int32 and targets.values.dtype == torch.float16
        given = targets.part(0, B * T)  # what chunked_loss gives to a head
        assert given.ids.dtype == torch.int64 and given.values.dtype == torch.float32


def test_the_start_token_is_not_avoided():
    """Which another order than left to right reads first."""
    x, y = torch.tensor([[V, 1, 2]]), torch.tensor([[1, 2, 3]])
    want = [[1, -1, -1, -1], [2, 1, -1, -1], [3, 2, 1, -1]]
    assert HEADS["unlikelihood"](V).targets(x, y).ids.tolist() == want


def test_tokens_to_avoid():
    """unlikelihood reads them from labels of value -1, though it has one true token."""
    (hidden, weight, _), ids = inputs(4)
    pair = torch.stack((ids, (ids + 1) % V), 1), torch.tensor([[1.0, -1.0]]).expand(4, 2)
    z = hidden @ weight.T
    avoided = 1 - z.softmax(1)[range(4), pair[0][:, 1]]
    plain = F.cross_entropy(z, ids) - avoided.log().mean()
    assert_equal([linear_loss(hidden, weight, pair, "unlikelihood").detach()], [plain.detach()])


WRONG = dict(softcap={"cap": 0.0}, sigmoid_cap={"shift": math.inf}, power_loss={"alpha": 0.0})
WRONG |= dict(unlikelihood={"window": -1})


@pytest.mark.parametrize("name, args", WRONG.items())
def test_wrong_arguments_are_named(name, args):
    with pytest.raises(ValueError, match=next(iter(args))):
        named_head(name, V, args)


def test_positions_without_a_loss_avoid_no_token():
    from tests.test_language_model import test_positions_without_a_loss_are_left_out as check

    check("unlikelihood")


def test_unlikelihood_trains_on_the_tokens_of_its_context(trainer, tiny):
    t = trainer(tiny(head="unlikelihood", head_args={"window": 5}))
    x, targets, _ = t.loader.source.batch(0, 0)
    y = torch.cat((x[:, 1:], targets.token.view(x.shape)[:, -1:]), 1)
    assert targets.ids.shape == (y.numel(), 6) and torch.equal(targets.token, y.flatten())
    assert set(targets.values.flatten().tolist()) == {1.0, 0.0, -1.0}
    assert math.isfinite(train.train_step(t))
