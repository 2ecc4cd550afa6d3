"""GPT-2 in one file, and the language model: a trunk (tokens -> hidden states) joined to an output head.

The trunk knows nothing of heads (heads/): it ends after the final LayerNorm. The output projection shares its
token embedding unless a configuration says tied = False. Names follow GPT-2's, so that its weights go in and
out (labs/transformers).
Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import record_function

if TYPE_CHECKING or not __package__:
    from heads import OutputHead, Targets, Weights, check_arguments, check_choice, check_range, make_head
else:  # nanoheads.model, in somebody's program
    from .heads import OutputHead, Targets, Weights, check_arguments, check_choice, check_range, make_head


@dataclass(frozen=True)
class GPTConfig:
    """Size of a trunk. ValueError for sizes that cannot be.

    `vocab_size` is the true V; the embedding has `padded_vocab` rows, a multiple of 64, which is faster on a
    GPU.
    """

    vocab_size: int = 50257
    block_size: int = 512
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    dropout: float = 0.0

    def __post_init__(self) -> None:
        sizes = {f.name: getattr(self, f.name) for f in fields(GPTConfig) if f.name != "dropout"}
        check_range("[1, inf)", **sizes)
        check_range("[0, 1)", dropout=self.dropout)
        if self.n_embd % self.n_head:
            raise ValueError(f"n_embd = {self.n_embd} is not a multiple of n_head = {self.n_head}")

    @property
    def known_ids(self) -> int:
        """How many ids the trunk can read. A lab's trunk reads one beside the vocabulary, a start or a mask
        token, to which no head gives a probability."""
        return self.vocab_size

    @property
    def padded_vocab(self) -> int:
        return -(-self.known_ids // 64) * 64

    @property
    def parameters(self) -> int:
        """Numbers in the trunk, counted without making any: a block has 12 C^2 + 13 C."""
        C = self.n_embd
        return (self.padded_vocab + self.block_size) * C + self.n_layer * (12 * C + 13) * C + 2 * C


# -----------------------------------------------------------------------------
# What every trunk is, to training, scoring and sampling


class Trunk(nn.Module):
    """Tokens -> hidden states: what every trunk is."""

    config: GPTConfig  # padded_vocab and n_embd are those of the hidden states that the head reads
    tied = False  # whether the output projection shares the embedding; LanguageModel sets it
    # Whether it reads a text from left to right. A lab's may not (masked diffusion): a program that samples
    # or labels from left to right refuses it
    forwards = True

    def new_readout(self) -> nn.Parameter:
        """Weights (padded V, C) of an output projection that shares nothing, N(0, .02^2), as GPT-2's."""
        c = self.config
        weight = nn.Parameter(torch.empty(c.padded_vocab, c.n_embd).normal_(0.0, 0.02))
        weight.data[c.vocab_size :] = 0
        return weight

    @property
    def embedding(self) -> nn.Parameter | None:
        """What a tied output projection shares: (padded V, C); None where there is nothing to share."""
        return None

    @property
    def context(self) -> int:
        """The most tokens that it reads from left to right, to predict the one after each."""
        return self.config.block_size

    def new_cache(self, batch: int, dtype: torch.dtype, size: int) -> Any:
        """What `forward(tokens, cache=...)` keeps of the tokens it has read, at most `size` of them. Its
        `length` says how many; set to 0, it is empty. None: this trunk reads a text anew for each token."""
        return None


# -----------------------------------------------------------------------------
# GPT-2


class Cache:
    """Keys and values of the tokens already read.

    `kv[layer]` is (2, B, nh, size, hs); the first `length` places are filled. `size`: how many tokens fit; 0:
    block_size.
    """

    def __init__(self, model: "GPT", batch: int, dtype: torch.dtype = torch.float32, size: int = 0):
        c = model.config
        # zeros: `decode` attends to all positions, and masked garbage might be a nan
        shape = (c.n_layer, 2, batch, c.n_head, size or c.block_size, c.n_embd // c.n_head)
        self.kv = torch.zeros(shape, dtype=dtype, device=model.wte.weight.device)
        self.length = 0


def short_attention(q: Tensor, k: Tensor, v: Tensor, causal: bool = True) -> Tensor:
    """Attention (B, nh, T, hs) as its formula says: softmax(q k^T / sqrt(hs)) v.

    On a CPU in bfloat16 this is three times as fast as torch's fused kernel, forward and backward, for short
    blocks, whose (T, T) scores are small. Precision: that of the same formula under autocast.
    """
    B, nh, T, hs = q.shape
    q, k, v = (t.reshape(B * nh, T, hs) for t in (q, k, v))
    bias = q.new_full((T, T), -math.inf).triu(1) if causal else q.new_zeros(T, T)
    scores = torch.baddbmm(bias, q, k.transpose(1, 2), alpha=hs**-0.5)
    return (torch.softmax(scores, -1) @ v).view(B, nh, T, hs)


class Attention(nn.Module):
    def __init__(self, config: GPTConfig, bias: bool = True):
        super().__init__()
        self.n_head, self.dropout = config.n_head, config.dropout
        self.causal = True
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias)

    def forward(self, x: Tensor, kv: Tensor | None, start: int | Tensor, mask: Tensor | None) -> Tensor:
        return self.attend(*self.qkv(x), kv, start, mask)

    def qkv(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (B, nh, T, hs) of x (B, T, C)."""
        B, T, C = x.shape
        q, k, v = self.c_attn(x).view(B, T, 3, self.n_head, C // self.n_head).permute(2, 0, 3, 1, 4)
        return q, k, v

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, kv: Tensor | None, start: int | Tensor, mask: Tensor | None
    ) -> Tensor:
        """Attention's output (B, T, C) for the queries q, keys k and values v (B, nh, T, hs) of T new tokens.

        kv     keys and values of the `start` tokens before them, (2, B, nh, size, hs), where k and v go too
        start  an int; or a Tensor (1,) for one new token in a CUDA graph
        mask   which tokens each one sees: bool, up to (B, 1, T, start + T); None: itself and those before it,
               or, unless `causal`, all
        """
        B, _, T, _ = q.shape
        causal = self.causal and T > 1 and mask is None
        if isinstance(start, Tensor):
            # one new token, at a position that a CUDA graph reads anew each time: no shape may depend on it
            assert kv is not None
            kv.index_copy_(3, start, torch.stack((k, v)).to(kv.dtype))
            k, v = kv.to(q.dtype)
            mask = (torch.arange(kv.shape[3], device=q.device) <= start)[None]  # (1, size)
        elif kv is not None:
            end = start + T
            kv[0, :, :, start:end], kv[1, :, :, start:end] = k, v
            k, v = kv[0, :, :, :end].to(q.dtype), kv[1, :, :, :end].to(q.dtype)
            if causal and start:  # several new tokens after old ones: the triangle starts at column `start`
                mask, causal = torch.ones(T, end, dtype=torch.bool, device=q.device).tril(start), False
        dropout = self.dropout if self.training else 0.0
        trains_in_bf16 = torch.is_grad_enabled() and q.device.type == "cpu" and q.dtype == torch.bfloat16
        if trains_in_bf16 and kv is None and mask is None and not dropout and 1 < T <= 512:
            y = short_attention(q, k, v, causal)
        else:
            y = F.scaled_dot_product_attention(q, k, v, mask, dropout, causal)
        return self.c_proj(y.transpose(1, 2).reshape(B, T, -1))


class MLP(nn.Module):
    def __init__(self, config: GPTConfig):
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd)
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, config: GPTConfig):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd)
        self.attn = Attention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd)
        self.mlp = MLP(config)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, kv: Tensor | None, start: int | Tensor, mask: Tensor | None) -> Tensor:
        x = x + self.drop(self.attn(self.ln_1(x), kv, start, mask))
        return x + self.drop(self.mlp(self.ln_2(x)))


class GPT(Trunk):
    """GPT-2's trunk: a token sees itself and those before it."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.padded_vocab, config.n_embd)
        self.wpe = self.new_positions()
        self.drop = nn.Dropout(config.dropout)
        self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f: nn.Module = nn.LayerNorm(config.n_embd)
        self.init_weights()

    def new_positions(self) -> nn.Module:
        """The embedding of `positions`, see `forward`. A lab's may take several numbers a token."""
        return nn.Embedding(self.config.block_size, self.config.n_embd)

    @torch.no_grad()
    def init_weights(self) -> None:
        """GPT-2's initialisation: N(0, .02^2) with residual projections scaled by 1/sqrt(2 n_layer), zero
        biases."""
        residual = 0.02 / math.sqrt(2 * self.config.n_layer)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                p.normal_(0.0, residual if name.endswith("c_proj.weight") else 0.02)
            elif name.endswith("bias"):
                p.zero_()
        self.wte.weight[self.config.known_ids :] = 0  # padding rows: never looked up, never scored

    @property
    def embedding(self) -> nn.Parameter:
        weight = self.wte.weight
        assert isinstance(weight, nn.Parameter)  # torch declares a Tensor
        return weight

    def new_cache(self, batch: int, dtype: torch.dtype, size: int) -> Cache:
        return Cache(self, batch, dtype, size)

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor | None = None,
        cache: Cache | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Hidden states (B, T, C) after the final LayerNorm, for `tokens` (B, T) of ids.

        positions  where each token stands: (T,) or (B, T). None: the text from left to right, after what
                   `cache` holds
        cache      the tokens are appended to it
        mask       which tokens each one sees: bool (B, T, T), with a cache (B, T, its length + T). None:
                   itself and those before it

        ValueError if the text is longer than block_size.
        """
        start = cache.length if cache is not None else 0
        if positions is None:
            self.check_room(start + tokens.shape[1], cache)
            positions = torch.arange(start, start + tokens.shape[1], device=tokens.device)
        # a tied head gives wte a dense gradient. The embedding's sparse one is added to it row by row, so a
        # CPU need not fill and add another (V, C)
        sparse = self.tied and self.training and tokens.device.type == "cpu"
        x = F.embedding(tokens, self.wte.weight, sparse=sparse)  # (B, T, C)
        # mask[:, None]: one for all attention heads
        x = self._blocks(x, positions, cache, start, None if mask is None else mask[:, None])
        if cache is not None:
            cache.length += tokens.shape[1]
        return x

    def check_room(self, count: int, cache: Cache | None) -> None:
        """ValueError if `count` tokens, those in the cache among them, do not fit the block or the cache."""
        room = min(self.config.block_size, cache.kv.shape[4]) if cache is not None else self.config.block_size
        if count > room:
            raise ValueError(f"{count} tokens do not fit block_size = {room}")

    def decode(self, tokens: Tensor, cache: Cache, position: Tensor) -> Tensor:
        """Hidden states (B, 1, C) of one more token (B, 1) in slot `position` (1,), from left to right:
        `forward` for a CUDA graph.

        No shape depends on the position: attention reads the whole cache under a mask. The caller counts
        the token in `cache.length`.
        """
        return self._blocks(self.wte(tokens), position, cache, position, None)

    def _blocks(
        self, x: Tensor, positions: Tensor, cache: Cache | None, start: int | Tensor, mask: Tensor | None
    ) -> Tensor:
        """Hidden states of the embedded tokens x (B, T, C) at `positions`."""
        x = self.drop(x + self.wpe(positions))
        for i, block in enumerate(self.h):
            x = block(x, cache.kv[i] if cache is not None else None, start, mask)
        return self.ln_f(x)


# -----------------------------------------------------------------------------
# The language model

# name -> class that makes a trunk from a GPTConfig and trunk_args; a lab's are TRUNKS of labs/LAB/trunk.py.
# Its forward(tokens, positions) gives hidden states (B, T, C), as GPT's does
TRUNKS: dict[str, type[Trunk]] = {"gpt": GPT}


class LanguageModel(nn.Module):
    """A trunk and its output head: tokens and targets -> the loss; tokens -> a distribution."""

    def __init__(self, trunk: Trunk, head: OutputHead):
        super().__init__()
        self.trunk, self.head = trunk, head
        self._compiled: Callable[..., Tensor] | None = None
        trunk.tied = head.projection.weight is trunk.embedding

    def forward(
        self,
        tokens: Tensor,
        targets: Tensor | Targets,
        positions: Tensor | None = None,
        noise: torch.Generator | None = None,
    ) -> tuple[Tensor, int]:
        """(sum of the losses in nats, number of positions that have one) for `tokens` (B, T).

        targets    the next tokens (B, T), -1 where a position has no loss, or the Targets of B * T positions
        positions  where each token stands and which it predicts, see the trunk
        noise      draws the weights of a Bayesian projection, once
        """
        if isinstance(targets, Tensor):
            targets = self.head.head.targets(tokens, targets).kept()
        with record_function("trunk, forward"):
            trunk = self._compiled or self.trunk
            hidden = trunk(tokens, positions)  # (B, T, C)
        with record_function("head, loss and gradient"):
            return self.head.loss(hidden, targets, noise)

    @torch.no_grad()
    def log_probs(self, tokens: Tensor, draws: list[Weights] | None = None) -> Tensor:
        """log p (B, T, V) of the token after each of `tokens` (B, T); `draws`: see OutputHead.draws."""
        hidden = self.trunk(tokens)
        draws = draws or self.head.draws(1, 0)
        return self.head.log_probs(hidden.flatten(0, 1), draws).unflatten(0, tokens.shape)

    def compile(self, **options: Any) -> None:
        """Compiles what training runs: the trunk, and the head's arithmetic. Scoring and sampling, whose
        shapes change, stay as they are."""
        self._compiled = torch.compile(self.trunk.forward, **options)
        self.head.compile(**options)

    def cast_linears(self, dtype: torch.dtype) -> None:
        """Keeps the weights of the trunk's linear layers in `dtype`, in place, for inference under autocast
        to it: the same numbers, without casting them for each token."""
        for m in self.trunk.modules():
            if isinstance(m, nn.Linear):
                m.to(dtype)

    def tensors(self) -> dict[str, Tensor]:
        """Name -> tensor of all that a checkpoint keeps: each shared parameter once (a tied projection is the
        token embedding), and what a trunk counts beside its parameters (BatchNorm's means and variances)."""
        kept = self.trunk.state_dict().keys()
        counted = {f"trunk.{name}": b for name, b in self.trunk.named_buffers() if name in kept}
        return dict(self.named_parameters()) | counted

    def state(self) -> dict[str, Tensor]:
        """`tensors`, detached, to be saved."""
        return {name: t.detach().contiguous() for name, t in self.tensors().items()}


# -----------------------------------------------------------------------------
# From a run's configuration


def trunk_config(config: dict[str, Any]) -> GPTConfig:
    """The sizes among the keys of a run's configuration. ValueError if they cannot be."""
    return GPTConfig(**{f.name: config[f.name] for f in fields(GPTConfig)})


def find_trunk(name: str, args: dict[str, Any]) -> Callable[..., Trunk]:
    """The trunk called `name`, of TRUNKS or of a lab. ValueError for an unknown trunk, or for `args` that it
    does not take."""
    trunk = TRUNKS.get(name)
    if trunk is None:
        from common.places import registered

        known = registered("model", "TRUNKS", "trunk")
        check_choice(known, trunk=name)
        trunk = known[name]
    check_arguments(trunk, args)
    return trunk


def make_trunk(config: dict[str, Any]) -> Trunk:
    """The trunk of a run's configuration. ValueError for an unknown one, or for arguments that cannot be."""
    args = config.get("trunk_args", {})
    return find_trunk(config.get("trunk", "gpt"), args)(trunk_config(config), **args)


def trunk_on_meta(config: dict[str, Any]) -> Trunk:
    """`make_trunk` on the meta device: shapes without numbers. `config` need not have a vocab_size."""
    with torch.device("meta"):
        return make_trunk({"vocab_size": 1, **config})


def context(config: dict[str, Any]) -> int:
    """`Trunk.context` of a run's configuration."""
    return trunk_on_meta(config).context


def build(config: dict[str, Any]) -> LanguageModel:
    """A new model from a run's configuration. ValueError if there is no such model.

    Its keys: GPTConfig's, head, head_args and, where it has them, trunk, trunk_args, tied, bayesian,
    prior_sigma, gain, learn_gain.
    """
    trunk = make_trunk(config)
    weight = trunk.embedding if config.get("tied", True) else trunk.new_readout()
    if weight is None:
        raise ValueError(f"the trunk {config['trunk']!r} has no token embedding to share: use tied = False")
    optional = ("bayesian", "prior_sigma", "gain", "learn_gain")
    beside = {key: config[key] for key in optional if key in config}
    head = make_head(config["head"], config["vocab_size"], weight, config["head_args"], **beside)
    return LanguageModel(trunk, head)
