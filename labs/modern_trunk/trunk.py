"""The trunk of today's small models, `trunk = "modern"`."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from model import GPT, Attention, Cache, GPTConfig, Trunk

Rotation = tuple[Tensor, Tensor]  # cosines and sines (..., T, hs / 2) of the angles of each token's place


def rotated(x: Tensor, rotation: Rotation) -> Tensor:
    """RMS-normed queries or keys (B, nh, T, hs), turned by their places: RoPE, Su et al. 2021, arXiv
    2104.09864, on QK-norm, Henry et al. 2020, arXiv 2010.04245."""
    a, b = F.rms_norm(x, x.shape[-1:]).chunk(2, -1)
    cos, sin = (part.to(x.dtype) for part in rotation)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)


class RotaryAttention(Attention):
    """Attention of queries and keys that are turned by their places."""

    def forward(  # type: ignore[override]
        self, x: Tensor, kv: Tensor | None, start: int | Tensor, mask: Tensor | None, rotation: Rotation
    ) -> Tensor:
        q, k, v = self.qkv(x)
        return self.attend(rotated(q, rotation), rotated(k, rotation), v, kv, start, mask)


class SquaredReLU(nn.Module):
    """An MLP with max(x, 0)^2 and no biases. Source: So et al. 2021, arXiv 2109.08668."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=False)
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.relu(self.c_fc(x)).square())


class ModernBlock(nn.Module):
    """RMSNorm without weights, attention with rotated queries and keys, squared ReLU; no biases."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.ln_1 = nn.RMSNorm(config.n_embd, elementwise_affine=False)
        self.attn = RotaryAttention(config, bias=False)
        self.ln_2 = nn.RMSNorm(config.n_embd, elementwise_affine=False)
        self.mlp = SquaredReLU(config)
        self.drop = nn.Dropout(config.dropout)

    def forward(
        self, x: Tensor, kv: Tensor | None, start: int | Tensor, mask: Tensor | None, rotation: Rotation
    ) -> Tensor:
        x = x + self.drop(self.attn(self.ln_1(x), kv, start, mask, rotation))
        return x + self.drop(self.mlp(self.ln_2(x)))


class Modern(GPT):
    """The trunk of today's small models, from left to right: rotary positions, RMSNorm without weights (also
    of the embedded tokens), normed queries and keys, squared ReLU, no biases. In config/modern.py it is not
    tied.

    Sources: modded-nanogpt (Jordan et al. 2024) and nanochat (Karpathy 2025), see also `rotated`.
    """

    def __init__(self, config: GPTConfig):
        nn.Module.__init__(self)
        if config.n_embd // config.n_head % 2:  # a head's numbers are turned in pairs
            raise ValueError(f"n_embd = {config.n_embd}, n_head = {config.n_head}: a head has an odd width")
        self.config = config
        self.wte = nn.Embedding(config.padded_vocab, config.n_embd)
        self.drop = nn.Dropout(config.dropout)
        self.h = nn.ModuleList(ModernBlock(config) for _ in range(config.n_layer))
        self.ln_f = nn.RMSNorm(config.n_embd, elementwise_affine=False)
        self.init_weights()

    def _blocks(
        self, x: Tensor, positions: Tensor, cache: Cache | None, start: int | Tensor, mask: Tensor | None
    ) -> Tensor:
        x, rotation = self.drop(F.rms_norm(x, x.shape[-1:])), self._rotation(positions)
        for i, block in enumerate(self.h):
            x = block(x, cache.kv[i] if cache is not None else None, start, mask, rotation)
        return self.ln_f(x)

    def _rotation(self, positions: Tensor) -> Rotation:
        """By which queries and keys are turned."""
        half = self.config.n_embd // self.config.n_head // 2
        rates = 10000 ** (-torch.arange(half, device=positions.device) / half)
        angles = (positions[..., None] * rates).unsqueeze(-3)  # (..., 1, T, hs / 2): the same for all heads
        return angles.cos(), angles.sin()


TRUNKS: dict[str, type[Trunk]] = {"modern": Modern}
