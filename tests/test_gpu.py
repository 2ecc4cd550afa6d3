"""What a GPU computes is what the CPU computes. Run with: make test-slow."""

import pytest
import torch
from torch import nn

from heads import HEADS, Targets, chunked_loss, make_head
from train import TrainConfig

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]


@pytest.mark.parametrize("name", HEADS)
def test_chunked_loss(name):
    grads = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        oh = make_head(name, 1000, nn.Parameter(torch.randn(1024, 64))).to(device)
        hidden = torch.randn(300, 64).to(device).requires_grad_()
        loss = chunked_loss(hidden, oh.projection.draw(), oh.head, Targets(*(t.to(device) for t in Targets.single(torch.arange(300)))), 128)
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
