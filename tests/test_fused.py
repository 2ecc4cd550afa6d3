"""What a GPU runs, compiled for this CPU: a head's gradient, whole, in the place of its logits."""

import pytest
import torch

from heads import HEADS, Targets, make_head
from heads.output import fused

V, PADDED, N = 300, 320, 24
FUSED = [name for name, head in HEADS.items() if head.gradient is not None and head.compiles]


def inputs(name: str, dtype: torch.dtype) -> tuple[torch.Tensor, Targets]:
    g = torch.Generator().manual_seed(1)
    z = (3 * torch.randn(N, PADDED, generator=g, dtype=torch.float64)).to(dtype)
    ids = torch.stack([torch.randperm(V, generator=g)[:6] for _ in range(N)])
    values = torch.rand(N, 6, generator=g)
    ids[::3, 4:], values[::3, 4:] = -1, 0
    targets = Targets(ids, values) if HEADS[name].multi_label else Targets.single(ids[:, 0])
    return z, targets._replace(weights=torch.linspace(0.5, 1.5, N))


@pytest.mark.slow
@pytest.mark.parametrize("name", FUSED)
def test_the_compiled_gradient_is_that_of_the_loss(name):
    """Compiled whole; in float64 to 1e-12 by autograd of `loss`, in bfloat16 to its rounding."""
    torch.compiler.reset()  # `fused` is one function of all heads, and torch keeps 8 compilations of it
    head, compiled = HEADS[name](V), torch.compile(fused, fullgraph=True)
    bias = None if head.bias is None else torch.full((V,), head.bias)
    for dtype, rtol in ((torch.float64, 1e-9), (torch.bfloat16, 2**-8)):
        z, targets = inputs(name, dtype)
        x = z[:, :V].double().requires_grad_()
        want = head.loss(x if bias is None else x + bias, targets) * targets.weights
        (gradient,) = torch.autograd.grad(want.sum(), x)
        loss, ids, at_ids = compiled(head, z, bias, None, targets)
        z.scatter_(1, ids, at_ids.to(z.dtype))
        torch.testing.assert_close(loss.double(), want.detach(), rtol=max(rtol / 100, 1e-12), atol=1e-5)
        torch.testing.assert_close(z[:, :V].double(), gradient, rtol=rtol, atol=1e-7)
        assert not z[:, V:].any()


def test_a_whole_batch_trains_in_one_chunk_as_in_many():
    """Through `OutputHead.loss`, with `fused` as it is in place of its compilation."""
    torch.manual_seed(0)
    results = []
    for compiled in (None, fused):
        for name in ("softmax", "sigmoid", "am_softmax", "gs_softmax_f1"):
            weight = torch.nn.Parameter(torch.randn(PADDED, 8, generator=torch.Generator().manual_seed(2)))
            oh = make_head(name, V, weight, gain=1.5)
            oh.fused = compiled
            hidden = torch.randn(N, 8, generator=torch.Generator().manual_seed(3), requires_grad=True)
            loss, count = oh.loss(hidden, inputs(name, torch.float32)[1])
            loss.backward()
            assert count == N
            results.append([loss.detach(), hidden.grad, *(p.grad for p in oh.parameters())])
    for plain, whole in zip(results[:4], results[4:]):
        for a, b in zip(plain, whole):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
