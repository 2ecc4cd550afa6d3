"""The gain of the logits, z = g h W^T + b: any head at any gain, fixed or learned."""

import pytest
import torch

from heads import Targets, make_head
from tests.fixtures import log
from training.run import load_model

V, C, N = 31, 12, 9


def made(name: str, gain: float = 1.0, learn: bool = False, args: dict | None = None, seed: int = 0):
    weight = torch.nn.Parameter(torch.randn(64, C, generator=torch.Generator().manual_seed(seed)))
    return make_head(name, V, weight, args, gain=gain, learn_gain=learn)


def rows(seed: int = 1) -> tuple[torch.Tensor, Targets]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(N, C, generator=g), Targets.single(torch.randint(V, (N,), generator=g))


@pytest.mark.parametrize("name", ["softmax", "sigmoid", "am_softmax", "taylor", "entmax15"])
def test_a_learned_gain_has_its_gradient(name):
    """Against the difference quotient of the loss."""
    hidden, targets = rows()
    hidden = hidden.double() * 0.1
    oh = made(name, 1.5, learn=True).double()
    loss, _ = oh.loss(hidden, targets)
    loss.backward()
    eps, around = 1e-5, []
    for sign in (1, -1):
        with torch.no_grad():
            oh.log_gain += sign * eps
            around.append(oh.loss(hidden, targets)[0].item())
            oh.log_gain -= sign * eps
    assert oh.log_gain.grad.item() == pytest.approx((around[0] - around[1]) / (2 * eps), rel=1e-4)


@pytest.mark.parametrize("how", [dict(gain=4.0), dict(gain=2.0, learn_gain=True)])
def test_a_run_keeps_its_gain(how, run, tiny, trained):
    """Trained, saved, resumed, scored and sampled from; another gain is another run."""
    c = tiny(max_steps=3, **how)
    assert run(c) == 0
    c.resume, c.max_steps, c.lr_decay_steps = True, 4, 3
    assert run(c) == 0
    model, _ = load_model(c.out_dir, "last")
    learned = model.head.log_gain is not None
    assert learned == ("learn_gain" in how)
    last = log(c.out_dir)[-1]
    if learned:
        assert 0 < abs(float(model.head.gain) - 2.0) < 0.1
        assert last["gain"] == pytest.approx(float(model.head.gain))
    else:
        assert model.head.gain == 4.0 and "gain" not in last
    c.gain = 3.0
    with pytest.raises(ValueError, match="gain"):
        run(c)
