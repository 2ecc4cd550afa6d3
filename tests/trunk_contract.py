"""The contract of a trunk: what holds for each of the labs', and for one of your own.

    from tests.trunk_contract import *

    @pytest.fixture(params=[{"trunk": "modern"}])
    def settings(request):
        return request.param

runs all of it for these settings of a configuration. A trunk that has no `forwards` reads all places at once.
"""

import copy

import pytest
import torch

from model import Cache, build
from tests.fixtures import same_tensors, weights

V = 61


def trunk_of(settings: dict) -> torch.nn.Module:
    """In float64, with weights so large that all of it shows."""
    size = dict(vocab_size=V, block_size=13, n_layer=2, n_head=2, n_embd=16, dropout=0.0)
    model = build(size | dict(head="softmax", head_args={}) | settings).double().eval()
    g = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.trunk.parameters():
            noise = torch.randn(p.shape, generator=g, dtype=p.dtype)
            p.copy_(0.3 * noise if p.dim() == 2 else p + 0.2 * noise)
    return model.trunk


def tokens(rows: int) -> torch.Tensor:
    return torch.randint(V, (rows, 12), generator=torch.Generator().manual_seed(5))


@torch.no_grad()
def test_a_place_sees_what_is_before_it_and_nothing_else(settings):
    trunk, x = trunk_of(settings), tokens(2)
    before = trunk(x)
    for t in range(12):
        changed = x.clone()
        changed[:, t] = (changed[:, t] + 1) % V
        difference = (trunk(changed) - before).abs().amax((0, 2))
        blind = t if trunk.forwards else 0
        assert (difference[:blind] < 1e-12).all() and (difference[blind:] > 1e-6).all()


@torch.no_grad()
def test_a_row_does_not_depend_on_the_others(settings):
    trunk, x = trunk_of(settings), tokens(3)
    alone = torch.cat([trunk(row[None]) for row in x])
    torch.testing.assert_close(trunk(x), alone, rtol=0, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("parts", [[12], [1] * 12, [5, 1, 4, 2]], ids=str)
def test_a_cache_goes_on_where_it_stopped(settings, parts):
    trunk, x = trunk_of(settings), tokens(2)
    if not trunk.forwards:
        pytest.skip("it reads all places at once")
    cache = Cache(trunk, 2, torch.float64)
    states = [trunk(part, cache=cache) for part in x.split(parts, 1)]
    torch.testing.assert_close(torch.cat(states, 1), trunk(x), rtol=0, atol=1e-9)
    cache = Cache(trunk, 2, torch.float64)
    states = [trunk(x[:, :5], cache=cache)]  # then the steps of a CUDA graph, which leave its length
    at = cache.length + torch.arange(7)
    states += [trunk.decode(x[:, 5 + i : 6 + i], cache, at[i : i + 1]) for i in range(7)]
    torch.testing.assert_close(torch.cat(states, 1), trunk(x), rtol=0, atol=1e-9)


def test_a_resumed_run_is_the_unbroken_run_to_the_bit(settings, run, tiny, tmp_path):
    c = tiny(lr_decay_steps=6, **settings)
    whole = copy.copy(c)
    c.max_steps, whole.out_dir = 3, str(tmp_path / "whole")
    assert run(c) == run(whole) == 0
    c.resume, c.max_steps = True, 6
    assert run(c) == 0
    assert same_tensors(weights(c.out_dir), weights(whole.out_dir))
