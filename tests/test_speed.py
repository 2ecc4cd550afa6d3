"""FLOPs, MFU; the loader that runs ahead."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import train
from common.device import PEAK_FLOPS, flops_per_token, peak_flops
from model import GPT, GPTConfig


def test_flops_are_those_of_the_matrix_products():
    """As torch counts them, forward and backward, of the trunk and a whole projection."""
    c = GPTConfig(vocab_size=320, block_size=32, n_layer=2, n_head=2, n_embd=64)
    model, tokens = GPT(c), torch.randint(320, (3, 32))
    with FlopCounterMode(display=False) as counter, torch.autocast("cpu", torch.bfloat16):
        hidden = model(tokens)
        (hidden @ model.wte.weight.t()).float().square().sum().backward()
    assert counter.get_total_flops() == pytest.approx(flops_per_token(c) * tokens.numel(), rel=1e-6)


def test_no_peak_is_guessed(monkeypatch):
    known = {("NVIDIA H200", "bfloat16"): PEAK_FLOPS["NVIDIA H200"], ("Tesla T4", "float16"): 65e12}
    unknown = ("NVIDIA H200", "float32"), ("Tesla T4", "bfloat16"), ("NVIDIA H2000", "bfloat16")
    for gpu, dtype in (*known, *unknown):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device, gpu=gpu: gpu)
        assert peak_flops(torch.device("cuda"), dtype) == known.get((gpu, dtype))
    assert peak_flops(torch.device("cpu"), "bfloat16") is None


@pytest.mark.parametrize("micro_batch", [0, 2])
def test_the_loader_loads_what_is_asked(trainer, tiny, micro_batch):
    t = trainer(tiny(micro_batch=micro_batch))
    for step in range(3):
        for part, batch in enumerate(t.loader.batches(step)):
            want = t.loader.source.batch(step, part)
            assert torch.equal(batch.tokens, want.tokens) and torch.equal(batch.targets.ids, want.targets.ids)
    # as after a resume: what was loaded for another step is not taken for this one
    batch, *_ = t.loader.batches(17)
    assert torch.equal(batch.tokens, t.loader.source.batch(17, 0).tokens)


def test_an_error_of_the_loader_reaches_the_loop(trainer, tiny, monkeypatch):
    t = trainer(tiny())
    monkeypatch.setattr(t.task.windows, "get", lambda indices: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train.train_step(t)
