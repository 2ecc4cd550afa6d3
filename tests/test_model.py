"""The trunk: the contract of tests/trunk_contract.py, and its own. That it is GPT-2's: labs/transformers."""

import copy
from functools import partial

import pytest
import torch

from heads import make_head
from model import GPT, Cache, GPTConfig, LanguageModel, short_attention
from tests.trunk_contract import *  # noqa: F403

V, T, C = 61, 16, 16  # 61 words in an embedding of 64 rows


def shaken(model: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """`model` with weights so large that all of it shows: sharp attention, biases, uneven LayerNorms."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            noise = torch.randn(p.shape, generator=g)
            p.copy_(0.3 * noise if p.dim() == 2 else p + 0.2 * noise)
    return model.eval()


def tiny(**changes) -> GPT:
    return shaken(GPT(GPTConfig(**dict(vocab_size=V, block_size=T, n_layer=2, n_head=2, n_embd=C) | changes)))


def tokens(*shape, vocab: int = V) -> torch.Tensor:
    return torch.randint(vocab, shape, generator=torch.Generator().manual_seed(5))


@pytest.fixture
def settings():
    """Of the contract."""
    return {"trunk": "gpt"}


@torch.no_grad()
def test_lowered_weights_are_what_autocast_computes_with():
    model, x = tiny(), tokens(2, T)
    lowered = copy.deepcopy(model)
    head = make_head("softmax", lowered.config.vocab_size, lowered.wte.weight)
    LanguageModel(lowered, head).cast_linears(torch.bfloat16)
    assert lowered.h[0].mlp.c_fc.weight.dtype == torch.bfloat16
    assert lowered.wte.weight.dtype == lowered.ln_f.weight.dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(model(x), lowered(x))


@pytest.mark.parametrize("length", [2, 31, 128])
def test_short_attention_is_attention(length):
    """Value and gradients of the bfloat16 path, computed in float64, against torch's kernel."""
    torch.manual_seed(0)
    qkv = torch.randn(3, 2, 4, length, 8, dtype=torch.float64)
    grads = []
    torchs = partial(torch.nn.functional.scaled_dot_product_attention, is_causal=True)
    for attention in (short_attention, torchs):
        x = qkv.clone().requires_grad_()
        y = attention(*x)
        y.square().sum().backward()
        grads.append((y.detach(), x.grad))
    for a, b in zip(*grads):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_bfloat16_training_is_close_to_float32():
    """The trunk's gradients under autocast, where attention takes another path than in float32."""
    model, x = tiny().train(), tokens(2, T)
    grads = []
    for enabled in (False, True):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            model(x).float().square().sum().backward()
        grads.append(torch.cat([p.grad.to_dense().flatten() for p in model.parameters()]))
    assert (grads[0] - grads[1]).norm() < 0.03 * grads[0].norm()


@torch.no_grad()
def test_positions_say_where_tokens_stand():
    model, x = tiny(), tokens(2, 6)
    assert torch.equal(model(x, torch.arange(6)), model(x))
    # any order, repeated, each row its own
    positions = torch.tensor([[3, 0, 9, 2, 15, 4], [1, 5, 5, 0, 7, 14]])
    for row in range(2):
        moved = copy.deepcopy(model)
        moved.wpe.weight[:6] = model.wpe.weight[positions[row]]
        want, alone = moved(x)[row], model(x[row : row + 1], positions[row])[0]
        torch.testing.assert_close(model(x, positions)[row], want, rtol=0, atol=1e-5)
        torch.testing.assert_close(alone, want, rtol=0, atol=1e-5)
    cache = Cache(model, 2)
    states = [model(x[:, :4], positions[:, :4], cache), model(x[:, 4:], positions[:, 4:], cache)]
    torch.testing.assert_close(torch.cat(states, 1), model(x, positions), rtol=0, atol=2e-5)


@torch.no_grad()
@pytest.mark.parametrize("size, room", [(0, T), (4, 4)])
def test_too_long(size, room):
    """An error that leaves the cache as it was."""
    model = tiny()
    with pytest.raises(ValueError, match=f"{T + 1} tokens"):
        model(tokens(1, T + 1))
    cache = Cache(model, 1, size=size)
    model(tokens(1, room - 2), cache=cache)
    kept = cache.kv.clone()
    with pytest.raises(ValueError, match=f"{room + 1} tokens"):
        model(tokens(1, 3), cache=cache)
    assert cache.length == room - 2 and torch.equal(cache.kv, kept)
    model(tokens(1, 2), cache=cache)  # exactly full


@torch.no_grad()
def test_dropout_is_for_training_only():
    model = tiny(dropout=0.5)
    assert torch.equal(model(tokens(1, T)), tiny()(tokens(1, T)))
    model.train()
    dropouts, calls = [m for m in model.modules() if isinstance(m, torch.nn.Dropout)], []
    for m in dropouts:
        m.register_forward_hook(lambda *_: calls.append(1))
    assert not torch.allclose(model(tokens(1, T)), model(tokens(1, T)))
    assert len(calls) == 2 * (1 + 2 * 2)  # the embedding, and both branches of both layers, twice
    for m in dropouts:
        m.p = 0.0
    # what is left drops attention weights
    assert not torch.allclose(model(tokens(1, T)), model(tokens(1, T)))


def test_number_of_parameters():
    """GPT-2 small has 124,439,808, with its 1,024 positions; ours has 47 padding rows more."""
    with torch.device("meta"):
        count = lambda **size: sum(p.numel() for p in GPT(GPTConfig(**size)).parameters())
        assert count(block_size=1024) == 124_439_808 + 47 * 768
        assert count() == 124_439_808 + 47 * 768 - 512 * 768
    c = GPTConfig(vocab_size=300, block_size=7, n_layer=3, n_head=2, n_embd=6)
    assert c.parameters == sum(p.numel() for p in GPT(c).parameters())


def test_initialisation():
    """N(0, .02^2), residual projections / sqrt(2 layers); a std of 3 x 64 x 64 numbers is known to 1%."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=V, block_size=64, n_layer=3, n_head=2, n_embd=64))
    p = dict(model.named_parameters())
    for end in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"):
        weight = torch.stack([p[f"h.{i}.{end}.weight"] for i in range(3)])
        std = 0.02 / 6**0.5 if end.endswith("c_proj") else 0.02
        assert weight.std().item() == pytest.approx(std, rel=0.04), end
        assert abs(weight.mean().item()) < 1e-3
    for embedding in (model.wte.weight[:V], model.wpe.weight):
        assert embedding.std().item() == pytest.approx(0.02, rel=0.06)
    assert not model.wte.weight[V:].any()
    assert not any(w.any() for k, w in p.items() if k.endswith("bias"))
    assert all((w == 1).all() for k, w in p.items() if ".ln_" in f".{k}" and k.endswith("weight"))
