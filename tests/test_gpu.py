"""What a GPU computes is what the CPU computes. Run with: make test-slow."""

import pytest
import torch
from torch import nn

from heads import HEADS, Targets, chunked_loss, make_head
from train import TrainConfig

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", HEADS)
def test_loss(name, compiled):
    """Of several chunks, and compiled of one, beside a CPU's."""
    grads = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        oh = make_head(name, 1000, nn.Parameter(torch.randn(1024, 64))).to(device)
        if compiled and device == "cuda":
            torch.compiler.reset()  # which keeps 8 compilations of the function that all heads share
            oh.compile()
        hidden = torch.randn(300, 64).to(device).requires_grad_()
        targets = Targets.single(torch.arange(300)).moved(lambda t: t.to(device))
        chunk = 0 if compiled else 128
        loss = chunked_loss(hidden, oh.projection.draw(), oh.head, targets, chunk, compiled=oh.fused)
        loss.backward()
        grads.append([loss.detach().cpu(), hidden.grad.cpu(), oh.projection.weight.grad.cpu()])
    for a, b in zip(*grads):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("compiled", [False, True])
def test_training_and_its_checkpoint(run, tiny, compiled):
    from sample import main

    c: TrainConfig = tiny(device="cuda", dtype="bfloat16", compile=compiled)
    assert run(c) == 0 and main([c.out_dir, "--device=cuda", "--length=20", "--dtype=bfloat16"]) == 0
    c.resume, c.device = True, "cpu"  # finished: loads what the GPU wrote
    assert run(c) == 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sampling_with_a_cuda_graph_equals_sampling_without(dtype):
    """Past block_size, where the cache is filled anew. In bfloat16 the first states agree up to rounding."""
    from evaluate.sampling import generate
    from training.checkpoint import build

    torch.manual_seed(0)
    size = dict(vocab_size=1000, block_size=64, n_layer=2, n_head=2, n_embd=64, dropout=0.0)
    softmax = dict(head="softmax", head_args={}, bayesian=False, prior_sigma=0.02)
    model = build(size | softmax).eval().cuda()
    prompt = torch.randint(1000, (3, 10), device="cuda")
    runs = []
    for cached in (True, False):
        draws = model.head.draws(1, 0, getattr(torch, dtype))
        how = dict(generator=torch.Generator("cuda").manual_seed(0), cached=cached, dtype=dtype)
        steps = list(generate(model, prompt, 100, draws, **how))
        runs.append((torch.stack([t for t, _ in steps], 1), torch.stack([h for _, h in steps], 1)))
    (a, ha), (b, hb) = runs
    if dtype == "float32":
        assert torch.equal(a, b)
    torch.testing.assert_close(ha[:, 0], hb[:, 0], rtol=0, atol=1e-4 if dtype == "float32" else 0.05)
