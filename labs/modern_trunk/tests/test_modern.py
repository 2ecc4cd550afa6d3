"""The trunk `modern`: the contract, and what it computes."""

import pytest
import torch
import torch.nn.functional as F

from labs.modern_trunk.trunk import Modern
from model import GPTConfig
from tests.trunk_contract import *  # noqa: F403

CONFIG = GPTConfig(vocab_size=50, block_size=12, n_layer=2, n_head=2, n_embd=16)


@pytest.fixture(scope="module")
def trunk() -> Modern:
    torch.manual_seed(0)
    trunk = Modern(CONFIG).eval()
    for p in trunk.parameters():
        torch.nn.init.normal_(p, 0, 0.3)
    return trunk


@pytest.fixture
def settings():
    return {"trunk": "modern"}


def tokens(count: int) -> torch.Tensor:
    return torch.randint(50, (1, count), generator=torch.Generator().manual_seed(count))


def test_formula(trunk):
    """Against the formulas written out, a position at a time."""
    ids, C, heads = tokens(7)[0], 16, 2
    half = C // heads // 2

    def norm(x):
        return x / (x.square().mean(-1, keepdim=True) + torch.finfo().eps).sqrt()

    def turn(x, place):
        """The pair (x_i, x_{i + half}) as a complex number, turned by place * 10000^(-i / half)."""
        z = torch.complex(norm(x)[:half], norm(x)[half:])
        z = z * torch.exp(1j * place * 10000 ** (-torch.arange(half) / half))
        return torch.cat((z.real, z.imag))

    x = [norm(trunk.wte.weight[i]) for i in ids]
    for block in trunk.h:
        qkv = [(block.attn.c_attn.weight @ norm(v)).view(3, heads, 2 * half) for v in x]
        seen = []
        for i in range(len(x)):
            each = []
            for h in range(heads):
                scores = [turn(qkv[i][0, h], i) @ turn(qkv[j][1, h], j) for j in range(i + 1)]
                p = torch.stack(scores).div((2 * half) ** 0.5).softmax(0)
                each.append(sum(p[j] * qkv[j][2, h] for j in range(i + 1)))
            seen.append(x[i] + block.attn.c_proj.weight @ torch.cat(each))
        x = [v + block.mlp.c_proj.weight @ (block.mlp.c_fc.weight @ norm(v)).clamp(min=0) ** 2 for v in seen]
    expected = torch.stack([norm(v) for v in x])
    torch.testing.assert_close(trunk(ids[None])[0], expected, atol=2e-5, rtol=1e-4)


def test_padding_moves_no_place(trunk):
    """Positions as a left-padded batch has them: padding is not seen, places begin behind it."""
    ids, pad = tokens(6), 3
    padded = F.pad(ids, (pad, 0))
    places = (torch.arange(9) - pad).clamp(min=0)[None]
    real = torch.arange(9) >= pad
    mask = torch.ones(9, 9, dtype=torch.bool).tril() & real | torch.eye(9, dtype=torch.bool)
    hidden = trunk(padded, places, mask=mask[None])[:, pad:]
    torch.testing.assert_close(hidden, trunk(ids), atol=1e-5, rtol=1e-4)
